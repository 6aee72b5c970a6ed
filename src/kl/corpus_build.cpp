// SPDX-License-Identifier: Apache-2.0
#include "kl/corpus_build.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <tuple>
#include <unordered_set>

#include "base/file.h"
#include "base/sha256.h"
#include "kl/agentic_text.h"
#include "kl/corpus_build_extract.h"

namespace rorqual::kl {
namespace {

constexpr int64_t kMaxFileBytes = int64_t{16} << 20;
constexpr size_t kMaxFiles = 20000;        // below one folder of the recipe
constexpr size_t kMinParagraphBytes = 30;  // shorter ones are labels
constexpr size_t kMinMessageBytes = 40;    // of the English text: shorter ones are labels, too
constexpr size_t kProseBytes = 1700;       // a document of prose is cut here …
constexpr size_t kMinProseBytes = 300;     // … and dropped below this
constexpr size_t kProseDocumentsPerFile = 2;
constexpr size_t kSourceBytes = 4500;  // the same for program text
constexpr size_t kMinSourceBytes = 600;
constexpr size_t kBytesPerSourceChunk = 12000;  // long files give several documents
constexpr size_t kMaxSourceChunks = 4;

struct PackageFile {
  std::string path;      // as opened
  std::string relative;  // below the root
};

std::string joined(const std::string& root, std::string_view path) {
  return root.ends_with('/') ? root + std::string(path) : fmt::format("{}/{}", root, path);
}

/// The package manager's list of the package's files, if the root is a system: other packages may put files
/// into the same folders. Empty for unpacked archives.
std::unordered_set<std::string> listed_files(std::string_view package, const std::string& root) {
  std::unordered_set<std::string> listed;
  for (const std::string_view architecture : {"", ":amd64", ":arm64"}) {
    const auto list = joined(root, fmt::format("var/lib/dpkg/info/{}{}.list", package, architecture));
    const auto text = read_text_file(list, kMaxFileBytes);
    if (!text.ok()) continue;
    std::string_view rest = *text;
    while (!rest.empty()) {
      const auto end = std::min(rest.find('\n'), rest.size());
      if (end > 1) listed.emplace(rest.substr(1, end - 1));  // without the leading slash
      rest.remove_prefix(std::min(end + 1, rest.size()));
    }
  }
  return listed;
}

/// Files of a part, paths ascending; empty when they are not there.
std::vector<PackageFile> part_files(const CorpusPart& part, const std::string& root) {
  namespace fs = std::filesystem;
  std::vector<PackageFile> files;
  std::error_code error;
  const auto listed = listed_files(part.package, root);
  const fs::path base = joined(root, part.path);
  if (fs::is_regular_file(base, error)) return {{base.string(), std::string(part.path)}};
  fs::recursive_directory_iterator entries(base, error);
  while (!error && entries != fs::recursive_directory_iterator() && files.size() < kMaxFiles) {
    const auto path = entries->path().string();
    std::error_code kind_error;
    auto relative = path.substr(base.string().size() + 1);
    const bool is_own = listed.empty() || listed.contains(fmt::format("{}/{}", part.path, relative));
    if (is_own && path.ends_with(part.suffix) && entries->is_regular_file(kind_error)) {
      files.push_back({path, std::move(relative)});
    }
    entries.increment(error);
  }
  std::sort(files.begin(), files.end(), [](const auto& a, const auto& b) { return a.relative < b.relative; });
  return files;
}

Error missing_packages(const std::set<std::string_view>& names, const std::string& root) {
  const auto list = fmt::format("{}", fmt::join(names, " "));
  return Error(
      Code::not_found, fmt::format("{} Debian packages are not below {}: {}", names.size(), root, list),
      fmt::format(
          "as root: apt-get install --no-install-recommends {}; without: "
          "scripts/corpus_packages FOLDER, then --root FOLDER (also where an image leaves documentation out)",
          list));
}

/// The parts' files, or which packages are missing.
Result<std::vector<std::vector<PackageFile>>> find_files(std::span<const CorpusPart> parts,
                                                         const std::string& root) {
  std::vector<std::vector<PackageFile>> files;
  std::set<std::string_view> missing;
  for (const auto& part : parts) {
    files.push_back(part_files(part, root));
    if (files.back().empty()) missing.insert(part.package);
  }
  if (!missing.empty()) return missing_packages(missing, root);
  return files;
}

uint64_t hash_of(std::string_view text) {
  uint64_t hash = 0xCBF29CE484222325ULL;  // FNV-1a
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3ULL;
  return CorpusRandom(hash).next();
}

/// A fixed order that mixes the chapters, another one for every language.
void mix(std::vector<PackageFile>& files, std::string_view salt) {
  const auto key = [&](const PackageFile& file) {
    return hash_of(fmt::format("{}/{}", salt, file.relative));
  };
  std::sort(files.begin(), files.end(),
            [&](const PackageFile& a, const PackageFile& b) { return key(a) < key(b); });
}

/// Collects the documents of one part after the other. One thread.
class Collector {
 public:
  /// Paragraphs that translations may not repeat.
  Status read_originals(const CorpusPart& english, std::span<const PackageFile> files);

  /// Documents of `part`, at least `budget` bytes if its files hold them.
  Result<std::vector<std::string>> documents(const CorpusPart& part, std::span<const PackageFile> files,
                                             int64_t budget);

 private:
  Result<std::vector<std::string>> paragraphs(const CorpusPart& part, const PackageFile& file) const;
  Result<std::vector<std::string>> prose(const CorpusPart& part, std::span<const PackageFile> files,
                                         int64_t budget);
  Result<std::vector<std::string>> source(std::span<const PackageFile> files, int64_t budget) const;
  bool accepts(const CorpusPart& part, const std::string& paragraph);

  std::unordered_set<std::string> originals_, seen_;
};

Result<std::vector<std::string>> Collector::paragraphs(const CorpusPart& part,
                                                       const PackageFile& file) const {
  RORQUAL_TRY_ASSIGN(const auto text, read_text_file(file.path, kMaxFileBytes));
  if (part.extract != ExtractKind::catalog) return markup_paragraphs(text, part.extract);
  auto messages = catalog_messages(text, kMinMessageBytes);
  if (!messages.ok()) return std::move(messages).error().at(file.path);
  std::sort((*messages).begin(), (*messages).end(),
            [](const std::string& a, const std::string& b) { return hash_of(a) < hash_of(b); });
  return messages;
}

Status Collector::read_originals(const CorpusPart& english, std::span<const PackageFile> files) {
  for (const auto& file : files) {
    RORQUAL_TRY_ASSIGN(auto texts, paragraphs(english, file));
    originals_.insert(std::make_move_iterator(texts.begin()), std::make_move_iterator(texts.end()));
  }
  return Ok();
}

bool Collector::accepts(const CorpusPart& part, const std::string& paragraph) {
  if (paragraph.size() < kMinParagraphBytes || holds_address(paragraph)) return false;
  if (!is_in_script(paragraph, part.script)) return false;
  if (part.language != "en" && originals_.contains(paragraph)) return false;
  return seen_.insert(paragraph).second;
}

Result<std::vector<std::string>> Collector::prose(const CorpusPart& part, std::span<const PackageFile> files,
                                                  int64_t budget) {
  std::vector<std::string> documents;
  int64_t total = 0;
  for (const auto& file : files) {
    RORQUAL_TRY_ASSIGN(const auto texts, paragraphs(part, file));
    const size_t limit = part.extract == ExtractKind::catalog ? texts.size() : kProseDocumentsPerFile;
    std::string current;
    size_t taken = 0;
    const auto finish = [&] {
      if (current.size() >= kMinProseBytes) {
        total += static_cast<int64_t>(current.size());
        documents.push_back(std::move(current));
        ++taken;
      }
      current.clear();
    };
    for (const auto& paragraph : texts) {
      if (taken >= limit || total >= budget) break;
      if (!accepts(part, paragraph)) continue;
      if (!current.empty() && current.size() + paragraph.size() > kProseBytes) finish();
      current += paragraph;
      current += '\n';
    }
    if (taken < limit && total < budget) finish();
    if (total >= budget) break;
  }
  return documents;
}

/// Chunk `index` of `count` of a program text: from a blank line to a blank line.
std::string source_chunk(std::string_view text, size_t index, size_t count) {
  size_t begin = text.size() * index / count;
  if (index > 0) {
    const auto gap = text.find("\n\n", begin);
    if (gap == std::string_view::npos) return {};
    begin = gap + 2;
  }
  auto chunk = text.substr(std::min(begin, text.size()), kSourceBytes);
  if (begin + chunk.size() < text.size()) {
    auto end = chunk.rfind("\n\n");
    if (end == std::string_view::npos || end < kMinSourceBytes) end = chunk.rfind('\n');
    if (end != std::string_view::npos) chunk = chunk.substr(0, end + 1);
  }
  const auto first = std::min(chunk.find_first_not_of('\n'), chunk.size());
  return std::string(chunk.substr(first));
}

Result<std::vector<std::string>> Collector::source(std::span<const PackageFile> files, int64_t budget) const {
  std::vector<std::string> texts, documents;
  for (const auto& file : files) {
    RORQUAL_TRY_ASSIGN(const auto raw, read_text_file(file.path, kMaxFileBytes));
    texts.push_back(clean_source(raw));
  }
  int64_t total = 0;
  for (size_t index = 0; index < kMaxSourceChunks; ++index) {
    for (const auto& text : texts) {
      const size_t count = std::clamp(text.size() / kBytesPerSourceChunk, size_t{1}, kMaxSourceChunks);
      if (index >= count || total >= budget) continue;
      auto chunk = source_chunk(text, index, count);
      if (chunk.size() < kMinSourceBytes) continue;
      total += static_cast<int64_t>(chunk.size());
      documents.push_back(std::move(chunk));
    }
  }
  return documents;
}

Result<std::vector<std::string>> Collector::documents(const CorpusPart& part,
                                                      std::span<const PackageFile> files, int64_t budget) {
  if (part.extract == ExtractKind::source) return source(files, budget);
  return prose(part, files, budget);
}

struct Placed {
  uint64_t place;  // where it goes, as a fraction of the text
  size_t part, index;
  std::string text;
};

/// Every part is spread over the whole text, with a little disorder so that languages do not follow each
/// other in a fixed cycle.
void place(std::vector<Placed>& out, size_t part, std::vector<std::string> documents) {
  CorpusRandom random(part + 1);
  const uint64_t count = documents.size();
  for (size_t j = 0; j < documents.size(); ++j) {
    const uint64_t jitter = random.next() >> 33;
    out.push_back({((uint64_t{j} << 31) + jitter) / count, part, j, std::move(documents[j])});
  }
}

/// Hash and size of what each package gave, packages in the parts' order.
class PackageSums {
 public:
  void add(std::string_view package, std::string_view text) {
    auto& entry = entries_[package];
    if (!entry.hash) {
      entry.hash = std::make_unique<Sha256>();
      order_.push_back(package);
    }
    entry.hash->update(std::as_bytes(std::span(text)));
    entry.bytes += static_cast<int64_t>(text.size());
  }

  std::vector<CorpusPackageUse> finish(CorpusKind kind, bool is_recorded_size) {
    std::vector<CorpusPackageUse> uses;
    for (const auto package : order_) {
      auto& entry = entries_[package];
      CorpusPackageUse use{.package = package, .sha256 = entry.hash->hex(), .bytes = entry.bytes};
      const auto recorded = recorded_package_sha256(kind, package);
      use.is_as_recorded = !is_recorded_size || recorded.empty() || recorded == use.sha256;
      uses.push_back(std::move(use));
    }
    return uses;
  }

 private:
  struct Entry {
    std::unique_ptr<Sha256> hash;
    int64_t bytes = 0;
  };

  std::map<std::string_view, Entry> entries_;
  std::vector<std::string_view> order_;
};

void append_document(BuiltCorpus& corpus, std::string_view language, Script script, std::string_view text) {
  if (!corpus.text.empty()) corpus.text += '\n';
  const auto begin = static_cast<int64_t>(corpus.text.size());
  corpus.text += text;
  if (!corpus.text.ends_with('\n')) corpus.text += '\n';
  corpus.documents.push_back({language, script, begin, static_cast<int64_t>(corpus.text.size())});
}

Result<BuiltCorpus> build_from_parts(CorpusKind kind, const CorpusBuildOptions& options, int64_t bytes) {
  const auto parts = corpus_parts(kind);
  RORQUAL_TRY_ASSIGN(auto files, find_files(parts, options.root));
  Collector collector;
  for (size_t p = 0; p < parts.size(); ++p) {
    if (parts[p].language == "en") RORQUAL_TRY(collector.read_originals(parts[p], files[p]));
  }
  const int64_t recorded = corpus_default_bytes(kind);
  BuiltCorpus corpus{.kind = kind, .is_recorded_size = bytes == recorded};
  PackageSums sums;
  std::vector<Placed> placed;
  int64_t total = 0;
  for (size_t p = 0; p < parts.size(); ++p) {
    mix(files[p], parts[p].language);
    const int64_t budget = (parts[p].bytes * bytes + recorded - 1) / recorded;
    RORQUAL_TRY_ASSIGN(auto documents, collector.documents(parts[p], files[p], budget));
    for (const auto& document : documents) {
      sums.add(parts[p].package, document);
      total += static_cast<int64_t>(document.size());
    }
    place(placed, p, std::move(documents));
  }
  if (total < bytes) {
    return Error(
        Code::invalid_argument,
        fmt::format("the packages of {} hold {} bytes of text in these proportions, {} were asked for",
                    corpus_kind_name(kind), total, bytes),
        fmt::format("ask for at most {} bytes", total));
  }
  std::sort(placed.begin(), placed.end(), [](const Placed& a, const Placed& b) {
    return std::tie(a.place, a.part, a.index) < std::tie(b.place, b.part, b.index);
  });
  for (const auto& document : placed) {
    append_document(corpus, parts[document.part].language, parts[document.part].script, document.text);
  }
  corpus.packages = sums.finish(kind, corpus.is_recorded_size);
  return corpus;
}

Result<BuiltCorpus> build_agentic(const CorpusBuildOptions& options, int64_t bytes) {
  RORQUAL_TRY_ASSIGN(const auto files, corpus_source_files(options.root));
  BuiltCorpus corpus{.kind = CorpusKind::agentic,
                     .is_recorded_size = bytes == corpus_default_bytes(CorpusKind::agentic)};
  PackageSums sums;
  for (const auto& file : files) {
    sums.add(file.package, file.path);
    sums.add(file.package, file.text);
  }
  for (auto& session : agentic_sessions(files, bytes)) {
    append_document(corpus, session.style, Script::latin, session.text);
  }
  corpus.packages = sums.finish(CorpusKind::agentic, corpus.is_recorded_size);
  return corpus;
}

}  // namespace

Result<std::vector<SourceFile>> corpus_source_files(const std::string& root) {
  const auto parts = corpus_parts(CorpusKind::code);
  RORQUAL_TRY_ASSIGN(const auto files, find_files(parts, root));
  std::vector<SourceFile> sources;
  for (size_t p = 0; p < parts.size(); ++p) {
    for (const auto& file : files[p]) {
      RORQUAL_TRY_ASSIGN(const auto raw, read_text_file(file.path, kMaxFileBytes));
      auto text = clean_source(raw);
      if (text.size() < kMinSourceBytes) continue;
      const auto name = file.relative.substr(parts[p].suffix.empty() ? file.relative.rfind('/') + 1 : 0);
      sources.push_back({parts[p].package, parts[p].language, name, std::move(text)});
    }
  }
  return sources;
}

Result<BuiltCorpus> build_corpus(CorpusKind kind, const CorpusBuildOptions& options) {
  const int64_t bytes = options.bytes > 0 ? options.bytes : corpus_default_bytes(kind);
  auto built =
      kind == CorpusKind::agentic ? build_agentic(options, bytes) : build_from_parts(kind, options, bytes);
  if (!built.ok()) return std::move(built).error();
  auto corpus = *std::move(built);
  corpus.sha256 = sha256_hex(std::as_bytes(std::span(corpus.text)));
  corpus.is_as_recorded = corpus.is_recorded_size && corpus.sha256 == recorded_corpus_sha256(kind);
  return corpus;
}

}  // namespace rorqual::kl
