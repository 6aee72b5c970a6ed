// SPDX-License-Identifier: Apache-2.0
// The chat page. No libraries, no requests to other hosts. Text of the model only ever becomes text nodes: it is
// never parsed as HTML. Conversations live in the browser's IndexedDB, an API key in memory or the tab's session.
'use strict';

const kSilenceNotice_ms = 20000;  // several keep-alive comments of the server: it sends one every 5 s
const kPollReady_ms = 1500;
const kBlockLimit = 20000;  // characters of one paragraph that are formatted while they stream

const $ = (id) => document.getElementById(id);

/** Element with properties and children; strings become text nodes. */
function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.startsWith('aria-') || name === 'role') element.setAttribute(name, value);
    else element[name] = value;
  }
  element.append(...children);
  return element;
}

// ---------------------------------------------------------------- Markdown (a subset) to DOM nodes

const kInline = [
  {mark: /`+/y, code: true},
  {mark: /\*\*|__/y, tag: 'strong'},
  {mark: /~~/y, tag: 'del'},
  {mark: /[*_]/y, tag: 'em'},
];
const kLink = /(!?)\[([^\[\]\n]{0,1000})\]\((\S{1,2000}?)(?:\s+"[^"\n]*")?\)/y;
const kUrl = /https?:\/\/[^\s<>"')\]]+/y;

function linkNode(text, url) {
  if (!/^(https?:|mailto:)/i.test(url)) return document.createTextNode(text);
  return make('a', {href: url, target: '_blank', rel: 'noopener noreferrer nofollow'}, text || url);
}

/** Appends `text` with code spans, emphasis and links to `parent`. Unclosed marks stay as they are. */
function inline(parent, text, depth = 0) {
  let plain = '';
  const flush = () => { if (plain) { parent.append(plain); plain = ''; } };
  const noCloser = new Set();  // marks known to have no partner further on: keeps the search linear
  for (let i = 0; i < text.length;) {
    const c = text[i];
    if (c === '\\' && /[\\`*_~\[\]()#|!-]/.test(text[i + 1] || '')) { plain += text[i + 1]; i += 2; continue; }
    if (c === '[' || (c === '!' && text[i + 1] === '[')) {
      kLink.lastIndex = i;
      const m = kLink.exec(text);
      if (m) { flush(); parent.append(linkNode((m[1] ? 'image: ' : '') + m[2], m[3])); i += m[0].length; continue; }
    }
    if (c === 'h' && text.startsWith('http', i)) {
      kUrl.lastIndex = i;
      const m = kUrl.exec(text);
      if (m) {
        const url = m[0].replace(/[.,;:!?]+$/, '');
        flush(); parent.append(linkNode(url, url)); i += url.length; continue;
      }
    }
    const rule = '`*_~'.includes(c) ? kInline.find((r) => { r.mark.lastIndex = i; return r.mark.test(text); }) : null;
    if (rule) {
      rule.mark.lastIndex = i;
      const mark = rule.mark.exec(text)[0];
      const inWord = c === '_' && /\w/.test(text[i - 1] || '');
      const opens = rule.code || (!inWord && /\S/.test(text[i + mark.length] || ''));
      let end = -1;
      if (opens && depth < 6 && !noCloser.has(mark)) {
        end = text.indexOf(mark, i + mark.length);
        if (end < 0) noCloser.add(mark);
      }
      if (end > i + mark.length) {
        flush();
        const body = text.slice(i + mark.length, end);
        if (rule.code) parent.append(make('code', {}, body.length > 2 ? body.replace(/^ (.*) $/s, '$1') : body));
        else { const e = make(rule.tag); inline(e, body, depth + 1); parent.append(e); }
        i = end + mark.length; continue;
      }
      plain += mark; i += mark.length; continue;
    }
    plain += c; i += 1;
  }
  flush();
}

function codeBlock(language) {
  const code = make('code');
  const copy = make('button', {type: 'button', className: 'link'}, 'Copy');
  copy.setAttribute('aria-label', 'Copy this code');
  copy.addEventListener('click', () => copyText(code.textContent, copy));
  const bar = make('div', {className: 'bar'}, make('span', {}, language || 'text'), copy);
  return {node: make('div', {className: 'code'}, bar, make('pre', {tabIndex: 0}, code)), code};
}

const kListItem = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/;
const kTableRule = /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)+\|?\s*$|^\s*\|\s*:?-+:?\s*\|\s*$/;
const cells = (line) => line.trim().replace(/^\|/, '').replace(/\|$/, '').split('|').map((s) => s.trim());

function listNode(lines) {
  const root = document.createDocumentFragment();
  const stack = [];  // {indent, list, item}
  for (const line of lines) {
    const m = kListItem.exec(line);
    if (!m) {
      const top = stack[stack.length - 1];
      if (top) { top.item.append(' '); inline(top.item, line.trim()); }
      continue;
    }
    const indent = m[1].length, ordered = /\d/.test(m[2]);
    while (stack.length && stack[stack.length - 1].indent > indent) stack.pop();
    let top = stack[stack.length - 1];
    if (!top || top.indent < indent) {
      if (stack.length > 8) top = stack[stack.length - 1];
      else {
        const list = make(ordered ? 'ol' : 'ul');
        if (ordered) list.start = parseInt(m[2], 10);
        (top ? top.item : root).append(list);
        top = {indent, list, item: null};
        stack.push(top);
      }
    }
    top.item = make('li');
    inline(top.item, m[3]);
    top.list.append(top.item);
  }
  return root;
}

/** One block without blank lines and fences: heading, rule, list, table, quote or paragraph. */
function blockNode(lines) {
  const out = document.createDocumentFragment();
  while (lines.length) {
    const heading = /^(#{1,6})\s+(.*?)#*$/.exec(lines[0]);
    if (heading) {
      const h = make('h' + heading[1].length);
      inline(h, heading[2].trim());
      out.append(h);
      lines = lines.slice(1);
    } else if (/^\s*([-*_])(\s*\1){2,}\s*$/.test(lines[0])) {
      out.append(make('hr'));
      lines = lines.slice(1);
    } else if (kListItem.test(lines[0])) {
      out.append(listNode(lines));
      lines = [];
    } else if (lines[0].startsWith('>')) {
      let n = 0;
      while (n < lines.length && lines[n].startsWith('>')) n += 1;
      out.append(make('blockquote', {}, blockNode(lines.slice(0, n).map((l) => l.replace(/^>\s?/, '').replace(/^>+/, '')))));
      lines = lines.slice(n);
    } else if (lines.length > 1 && lines[0].includes('|') && kTableRule.test(lines[1])) {
      const table = make('table');
      lines.forEach((line, i) => {
        if (i === 1) return;
        const row = make('tr');
        for (const cell of cells(line)) { const e = make(i === 0 ? 'th' : 'td'); inline(e, cell); row.append(e); }
        table.append(row);
      });
      out.append(make('div', {className: 'table'}, table));
      lines = [];
    } else {
      let n = 1;
      while (n < lines.length && !/^(#{1,6}\s|>)/.test(lines[n]) && !kListItem.test(lines[n])) n += 1;
      const p = make('p');
      lines.slice(0, n).forEach((line, i) => { if (i) p.append(make('br')); inline(p, line); });
      out.append(p);
      lines = lines.slice(n);
    }
  }
  return out;
}

/** Formats a growing text: finished blocks are made once, only the last one is made anew, so a long answer stays fast. */
class MarkdownStream {
  constructor(parent) {
    this.parent = parent;
    this.partial = '';   // the line that has no end yet
    this.lines = [];     // of the open block
    this.size = 0;
    this.fence = null;   // {mark, tail} inside a code block; tail is the node of the unfinished line
    this.draft = make('div');
    this.parent.append(this.draft);
  }

  append(text) {
    const parts = (this.partial + text).split('\n');
    this.partial = parts.pop();
    for (const line of parts) this.line(line.replace(/\r$/, ''));
    this.show();
  }

  line(line) {
    if (this.fence) {
      if (line.trim() === this.fence.mark) { this.fence.tail.data = ''; this.fence = null; }
      else this.fence.tail.before(line + '\n');
      return;
    }
    const open = /^\s{0,3}(`{3,}|~{3,})\s*([\w+#.-]*)[^`]*$/.exec(line);
    if (open) {
      this.close();
      const block = codeBlock(open[2]);
      this.parent.insertBefore(block.node, this.draft);
      this.fence = {mark: open[1], tail: document.createTextNode('')};
      block.code.append(this.fence.tail);
    } else if (line.trim() === '' || this.size > kBlockLimit) {
      if (line.trim()) this.lines.push(line);
      this.close();
    } else {
      this.lines.push(line);
      this.size += line.length;
    }
  }

  close() {
    if (this.lines.length) this.parent.insertBefore(blockNode(this.lines), this.draft);
    this.lines = [];
    this.size = 0;
  }

  show() {
    const open = this.fence ? [] : this.partial ? [...this.lines, this.partial] : this.lines;
    const long = this.partial.length > kBlockLimit;
    this.draft.replaceChildren(long ? open.join('\n') : blockNode(open));
    if (this.fence) this.fence.tail.data = this.partial;
  }

  finish() {
    if (this.fence) this.fence.tail.data = '';
    if (this.partial) this.line(this.partial);
    this.partial = '';
    this.close();
    this.draft.remove();
  }
}

function renderMarkdown(parent, text) {
  const stream = new MarkdownStream(parent);
  stream.append(text);
  stream.finish();
}

async function copyText(text, button) {
  const label = button.textContent;
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = 'Copied';
  } catch {
    button.textContent = 'Copying is not allowed here';
  }
  setTimeout(() => { button.textContent = label; }, 1500);
}

// ---------------------------------------------------------------- conversations in IndexedDB

const store = {
  database: null,
  memory: new Map(),  // where the browser offers no database (private windows)

  async open() {
    this.database = await new Promise((resolve) => {
      try {
        const request = indexedDB.open('rorqual', 1);
        request.onupgradeneeded = () => request.result.createObjectStore('conversations', {keyPath: 'id'});
        request.onsuccess = () => resolve(request.result);
        request.onerror = () => resolve(null);
      } catch { resolve(null); }
    });
  },

  run(mode, action) {
    return new Promise((resolve, reject) => {
      const request = action(this.database.transaction('conversations', mode).objectStore('conversations'));
      request.onsuccess = () => resolve(request.result);
      request.onerror = () => reject(request.error);
    });
  },

  async all() {
    const list = this.database ? await this.run('readonly', (s) => s.getAll()) : [...this.memory.values()];
    return list.sort((a, b) => b.updated - a.updated);
  },
  async get(id) { return this.database ? this.run('readonly', (s) => s.get(id)) : this.memory.get(id); },
  async put(item) {
    if (this.database) await this.run('readwrite', (s) => s.put(item));
    else this.memory.set(item.id, structuredClone(item));
  },
  async remove(id) { if (this.database) await this.run('readwrite', (s) => s.delete(id)); else this.memory.delete(id); },
  async clear() { if (this.database) await this.run('readwrite', (s) => s.clear()); else this.memory.clear(); },
};

const kDefaults = {system: '', thinking: 'high', temperature: '', top_p: '', max_tokens: '', tools: ''};
const freshId = () => Date.now().toString(36) + Math.random().toString(36).slice(2, 10);

function newConversation() {
  const settings = {...kDefaults};
  if (conversation) settings.thinking = conversation.settings.thinking;
  return {id: freshId(), title: 'New chat', updated: Date.now(), settings, messages: []};
}

/** An imported conversation with everything that the page relies on, or null. */
function checkedConversation(item) {
  if (!item || typeof item !== 'object' || !Array.isArray(item.messages)) return null;
  const text = (value) => (typeof value === 'string' ? value : '');
  const settings = {...kDefaults};
  for (const name of Object.keys(kDefaults)) settings[name] = text(item.settings && item.settings[name]) || kDefaults[name];
  const messages = item.messages.filter((m) => m && ['user', 'assistant', 'tool'].includes(m.role)).map((m) => ({
    role: m.role, content: text(m.content), reasoning: text(m.reasoning), stats: text(m.stats),
    reasoning_s: Number(m.reasoning_s) || 0, tool_call_id: text(m.tool_call_id),
    tool_calls: (Array.isArray(m.tool_calls) ? m.tool_calls : []).map((c) => ({id: text(c.id), name: text(c.name), arguments: text(c.arguments)})),
  }));
  return {id: text(item.id) || freshId(), title: text(item.title) || 'Imported', updated: Number(item.updated) || Date.now(), settings, messages};
}

// ---------------------------------------------------------------- the server

let apiKey = sessionStorage.getItem('rorqual-key') || '';

function headers() {
  const h = {'Content-Type': 'application/json'};
  if (apiKey) h.Authorization = 'Bearer ' + apiKey;
  return h;
}

/** Error with the server's own words. */
class ServerError extends Error {
  constructor(status, body) {
    const error = (body && body.error) || {};
    super(error.message || 'The server answered with status ' + status + '.');
    this.status = status;
    this.code = error.code || '';
    this.hint = error.hint || '';
  }
}

async function call(path) {
  const response = await fetch(path, {headers: headers(), cache: 'no-store'});
  const body = await response.json().catch(() => null);
  if (!response.ok) throw Object.assign(new ServerError(response.status, body), {body});
  return body;
}

function askKey(message) {
  const dialog = $('key-dialog');
  $('key-error').textContent = message;
  $('key').value = '';
  if (!dialog.open) dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener('close', () => {
      apiKey = $('key').value.trim();
      if ($('key-keep').checked && apiKey) sessionStorage.setItem('rorqual-key', apiKey);
      else sessionStorage.removeItem('rorqual-key');
      resolve();
    }, {once: true});
  });
}

/** Events of an SSE answer as parsed JSON; comments count as a sign of life. */
async function* serverEvents(response, onSign) {
  const reader = response.body.getReader();
  const decoder = new TextDecoder();
  let buffer = '';
  for (;;) {
    const {done, value} = await reader.read();
    if (done) return;
    onSign();
    buffer += decoder.decode(value, {stream: true});
    for (let end; (end = buffer.indexOf('\n\n')) >= 0; buffer = buffer.slice(end + 2)) {
      const data = buffer.slice(0, end).split('\n').filter((l) => l.startsWith('data:')).map((l) => l.slice(5).trimStart()).join('\n');
      if (data === '[DONE]') return;
      if (data) yield JSON.parse(data);
    }
  }
}

function requestBody() {
  const s = conversation.settings;
  const messages = s.system ? [{role: 'system', content: s.system}] : [];
  for (const m of conversation.messages) {
    if (m.role === 'tool') messages.push({role: 'tool', tool_call_id: m.tool_call_id, content: m.content});
    else if (m.role === 'user') messages.push({role: 'user', content: m.content});
    else if (!m.error || m.content) {
      const out = {role: 'assistant', content: m.content};
      if (m.reasoning) out.reasoning_content = m.reasoning;
      if (m.tool_calls && m.tool_calls.length) {
        out.tool_calls = m.tool_calls.map((c) => ({id: c.id, type: 'function', function: {name: c.name, arguments: c.arguments}}));
      }
      messages.push(out);
    }
  }
  const body = {model: $('model').value, messages, stream: true, stream_options: {include_usage: true},
    thinking: {type: s.thinking === 'off' ? 'disabled' : 'enabled'}};
  if (s.thinking !== 'off') body.reasoning_effort = s.thinking;
  if (s.temperature !== '') body.temperature = Number(s.temperature);
  if (s.top_p !== '') body.top_p = Number(s.top_p);
  if (s.max_tokens !== '') body.max_tokens = Number(s.max_tokens);
  if (s.tools.trim()) body.tools = JSON.parse(s.tools);
  return body;
}

// ---------------------------------------------------------------- state and view

let conversation = null;
let running = null;  // {controller, message} while an answer streams
let models = [];

const isAtEnd = () => { const l = $('log'); return l.scrollHeight - l.scrollTop - l.clientHeight < 80; };
const scrollToEnd = () => { const l = $('log'); l.scrollTop = l.scrollHeight; };

async function save() {
  conversation.updated = Date.now();
  await store.put(conversation);
  await showHistory();
}

async function showHistory() {
  const words = $('search').value.trim().toLowerCase();
  const list = (await store.all()).filter((c) => !words || c.title.toLowerCase().includes(words) ||
    c.messages.some((m) => m.content.toLowerCase().includes(words)));
  $('history').replaceChildren(...list.map((c) => {
    const open = make('button', {type: 'button', title: c.title}, c.title);
    if (c.id === conversation.id) open.setAttribute('aria-current', 'true');
    open.addEventListener('click', () => openConversation(c.id));
    const remove = make('button', {type: 'button', className: 'icon', 'aria-label': 'Delete "' + c.title + '"'}, '✕');
    remove.addEventListener('click', async () => {
      if (!confirm('Delete "' + c.title + '"?')) return;
      await store.remove(c.id);
      if (c.id === conversation.id) startNew(); else await showHistory();
    });
    return make('div', {className: 'entry' + (c.id === conversation.id ? ' current' : '')}, open, remove);
  }));
}

function startNew() {
  stopAnswer();
  conversation = newConversation();
  showConversation();
  showHistory();
  closeSidebar();
  $('input').focus();
}

async function openConversation(id) {
  stopAnswer();
  const found = await store.get(id);
  if (found) conversation = found;
  showConversation();
  await showHistory();
  closeSidebar();
}

function showConversation() {
  $('thinking').value = conversation.settings.thinking;
  $('welcome').hidden = conversation.messages.length > 0;
  $('messages').replaceChildren(...conversation.messages.map((m) => messageView(m).node));
  document.title = conversation.messages.length ? conversation.title + ' – rorqual' : 'rorqual';
  scrollToEnd();
}

function errorBox(error) {
  const box = make('div', {className: 'error-box', role: 'alert'}, make('strong', {}, 'Error: '), error.message);
  if (error.hint) box.append(make('div', {className: 'small'}, 'Hint: ' + error.hint));
  return box;
}

function thinkingTitle(message, seconds) {
  return message.content || message.done ? 'Thought for ' + seconds.toFixed(1) + ' s' : 'Thinking… ' + seconds.toFixed(0) + ' s';
}

/** The DOM of one message; `update` shows what has been added to it. */
function messageView(message) {
  if (message.role === 'user') return userView(message);
  if (message.role === 'tool') {
    return {node: make('article', {className: 'message'}, make('div', {className: 'tool'},
      make('span', {className: 'name'}, 'Result'), make('pre', {}, message.content)))};
  }
  const summary = make('summary');
  const thoughts = make('div', {className: 'text'});
  const thinking = make('details', {className: 'thinking', hidden: !message.reasoning}, summary, thoughts);
  const body = make('div', {className: 'markdown'});
  const tools = make('div');
  const actions = make('div', {className: 'actions'});
  const node = make('article', {className: 'message assistant', 'aria-label': 'Answer'}, thinking, body, tools, actions);
  const view = {node, thoughts, body, stream: null, shown: 0, shownThoughts: 0, tools, actions, summary, thinking};
  if (message.reasoning) {
    summary.textContent = thinkingTitle({done: true}, message.reasoning_s || 0);
    thoughts.textContent = message.reasoning;
  }
  if (message.content) renderMarkdown(body, message.content);
  finishView(view, message);
  return view;
}

function userView(message) {
  const body = make('div', {className: 'body'}, message.content);
  const edit = make('button', {type: 'button', className: 'link'}, 'Edit');
  const node = make('article', {className: 'message user', 'aria-label': 'Your message'}, body, make('div', {className: 'actions'}, edit));
  edit.addEventListener('click', () => {
    const area = make('textarea', {value: message.content, rows: 4, 'aria-label': 'Edit your message'});
    const send = make('button', {type: 'button', className: 'primary'}, 'Send again');
    const cancel = make('button', {type: 'button'}, 'Cancel');
    cancel.addEventListener('click', () => showConversation());
    send.addEventListener('click', () => {
      if (!area.value.trim()) return;
      stopAnswer();
      const at = conversation.messages.indexOf(message);
      conversation.messages.length = at;
      submit(area.value);
    });
    node.replaceChildren(area, make('div', {className: 'actions'}, cancel, send));
    area.focus();
  });
  return {node};
}

function toolCards(view, message) {
  view.tools.replaceChildren(...(message.tool_calls || []).map((c) => {
    let shown = c.arguments;
    try { shown = JSON.stringify(JSON.parse(c.arguments), null, 2); } catch { /* still incomplete: shown as it is */ }
    return make('div', {className: 'tool'}, make('span', {}, 'Tool call '), make('span', {className: 'name'}, c.name),
      make('pre', {className: 'mono'}, shown));
  }));
}

/** Fields for the results of the last message's tool calls. */
function resultForm(view, message) {
  const areas = message.tool_calls.map((c) => make('textarea', {rows: 2, placeholder: 'Result of ' + c.name, 'aria-label': 'Result of ' + c.name}));
  const send = make('button', {type: 'button', className: 'primary'}, 'Send results');
  send.addEventListener('click', () => {
    message.tool_calls.forEach((c, i) => conversation.messages.push({role: 'tool', tool_call_id: c.id, content: areas[i].value}));
    showConversation();
    answer();
  });
  view.tools.append(...areas, make('div', {className: 'actions'}, send));
}

/** Buttons and figures under a finished answer. */
function finishView(view, message) {
  toolCards(view, message);
  const last = conversation.messages[conversation.messages.length - 1] === message;
  if (last && message.tool_calls && message.tool_calls.length) resultForm(view, message);
  if (message.error) view.tools.append(errorBox(message.error));
  const copy = make('button', {type: 'button', className: 'link'}, 'Copy');
  copy.addEventListener('click', () => copyText(message.content, copy));
  const again = make('button', {type: 'button', className: 'link'}, 'Regenerate');
  again.addEventListener('click', () => {
    stopAnswer();
    conversation.messages.length = conversation.messages.indexOf(message);
    showConversation();
    answer();
  });
  view.actions.replaceChildren(copy, again, make('span', {className: 'stats'}, message.stats || ''));
}

// ---------------------------------------------------------------- asking and answering

function submit(text) {
  conversation.messages.push({role: 'user', content: text});
  if (conversation.messages.length === 1) conversation.title = text.trim().slice(0, 60);
  showConversation();
  answer();
}

function stopAnswer() { if (running) running.controller.abort(); }

function setRunning(state) {
  running = state;
  $('send').hidden = Boolean(state);
  $('stop').hidden = !state;
  $('log').setAttribute('aria-busy', state ? 'true' : 'false');
}

function takeDelta(message, delta) {
  if (delta.reasoning_content) message.reasoning += delta.reasoning_content;
  if (delta.content) message.content += delta.content;
  for (const part of delta.tool_calls || []) {
    const c = (message.tool_calls[part.index] ||= {id: '', name: '', arguments: ''});
    if (part.id) c.id = part.id;
    if (part.function && part.function.name) c.name = part.function.name;
    if (part.function && part.function.arguments) c.arguments += part.function.arguments;
  }
}

/** Shows what has come since the last call; `times` has the clock readings of the answer. */
function updateView(view, message, times) {
  const stay = isAtEnd();
  if (message.reasoning) {
    view.thinking.hidden = false;
    message.reasoning_s = ((times.content || performance.now()) - times.start) / 1000;
    view.summary.textContent = thinkingTitle(message, message.reasoning_s);
    view.thoughts.append(message.reasoning.slice(view.shownThoughts));
    view.shownThoughts = message.reasoning.length;
  }
  if (message.content.length > view.shown) {
    view.stream ||= new MarkdownStream(view.body);
    view.stream.append(message.content.slice(view.shown));
    view.shown = message.content.length;
  }
  if (message.tool_calls.length) toolCards(view, message);
  const silent = performance.now() - times.sign;
  view.actions.replaceChildren(make('span', {className: 'stats'},
    silent > kSilenceNotice_ms ? 'No sign from the server for ' + Math.round(silent / 1000) + ' s; still waiting.' :
      times.first ? '' : 'Waiting for the first token…'));
  if (stay) scrollToEnd();
}

function statsText(usage, times, reason) {
  const parts = [];
  if (usage) {
    const cached = (usage.prompt_tokens_details || {}).cached_tokens || 0;
    parts.push(usage.prompt_tokens + ' prompt tokens' + (cached ? ' (' + cached + ' cached)' : ''));
    const thought = (usage.completion_tokens_details || {}).reasoning_tokens || 0;
    parts.push(usage.completion_tokens + ' generated' + (thought ? ' (' + thought + ' thinking)' : ''));
  }
  if (times.first) parts.push('first token ' + ((times.first - times.start) / 1000).toFixed(2) + ' s');
  const decode_s = (times.end - times.first) / 1000;
  if (usage && times.first && decode_s > 0.02 && usage.completion_tokens > 1) {
    parts.push(((usage.completion_tokens - 1) / decode_s).toFixed(1) + ' tok/s');
  }
  if (reason && reason !== 'stop') parts.push(reason === 'length' ? 'cut at the token limit' : reason.replace('_', ' '));
  return parts.join(' · ');
}

async function answer() {
  const message = {role: 'assistant', content: '', reasoning: '', tool_calls: [], stats: '', reasoning_s: 0};
  const owner = conversation;
  const controller = new AbortController();
  const times = {start: performance.now(), first: 0, content: 0, end: 0, sign: performance.now()};
  const history = requestHistory();
  if (history.error) { conversation.messages.push({...message, error: history.error}); showConversation(); return; }
  conversation.messages.push(message);
  await save();
  const view = messageView(message);
  view.actions.replaceChildren();
  view.body.classList.add('cursor');
  $('messages').append(view.node);
  scrollToEnd();
  setRunning({controller, message});
  const clock = setInterval(() => updateView(view, message, times), 100);
  let usage = null, reason = '';
  try {
    const response = await fetch('/v1/chat/completions', {method: 'POST', headers: headers(), body: history.body, signal: controller.signal});
    if (!response.ok) throw new ServerError(response.status, await response.json().catch(() => null));
    for await (const event of serverEvents(response, () => { times.sign = performance.now(); })) {
      if (event.error) throw new ServerError(response.status, event);
      if (event.usage) usage = event.usage;
      const choice = event.choices && event.choices[0];
      if (!choice) continue;
      const delta = choice.delta || {};
      if (!times.first && (delta.content || delta.reasoning_content || delta.tool_calls)) times.first = performance.now();
      if (!times.content && (delta.content || delta.tool_calls)) times.content = performance.now();
      takeDelta(message, delta);
      if (choice.finish_reason) reason = choice.finish_reason;
    }
  } catch (error) {
    if (controller.signal.aborted) reason = 'stopped';
    else message.error = {message: error instanceof TypeError ? 'The connection to the server was lost.' : error.message,
      hint: error.hint || '', status: error.status || 0};
  }
  clearInterval(clock);
  times.end = performance.now();
  message.stats = statsText(usage, times, reason);
  message.done = true;
  updateView(view, message, times);
  if (view.stream) view.stream.finish();
  view.body.classList.remove('cursor');
  if (running && running.message === message) setRunning(null);
  finishView(view, message);
  delete message.done;
  if (owner === conversation) await save(); else await store.put(owner);
  if (message.error && message.error.status === 401) { await askKey(message.error.message); await connect(); }
}

/** The body of the next request, or the error that keeps it from being made. */
function requestHistory() {
  try {
    return {body: JSON.stringify(requestBody())};
  } catch (error) {
    return {error: {message: 'The tools in the settings are not valid JSON: ' + error.message, hint: 'open Settings and correct them'}};
  }
}

// ---------------------------------------------------------------- start-up, dialogs, keyboard

async function connect() {
  for (;;) {
    try {
      models = (await call('/v1/models')).data;
      $('not-ready').hidden = true;
      showModels();
      return;
    } catch (error) {
      if (error.status === 401) { await askKey(apiKey ? error.message : ''); continue; }
      await showNotReady(error);
      await new Promise((resolve) => setTimeout(resolve, kPollReady_ms));
    }
  }
}

async function showNotReady(error) {
  let state = null;
  try { state = await call('/ready'); } catch (e) { state = e.body || null; }
  const status = (state && state.status) || '';
  $('not-ready').hidden = false;
  $('not-ready-title').textContent = status === 'loading' ? 'The model is loading' : status === 'draining' ? 'The server is stopping' :
    status === 'dead' ? 'The engine has failed' : 'The server cannot be reached';
  $('not-ready-text').textContent = status === 'loading' ? Math.round(state.progress * 100) + ' %' : error.message + (error.hint ? ' ' + error.hint : '');
  if (status === 'loading') $('progress').value = state.progress; else $('progress').removeAttribute('value');
}

async function showModels() {
  const select = $('model');
  select.replaceChildren(...models.map((m) => make('option', {value: m.id}, m.id)));
  const first = models[0] || {};
  const note = 'This server runs the small demonstration model that ships with rorqual. It shows the architecture at work: a ' +
    'demonstration, not an assistant. Expect simple and often wrong answers.';
  $('demo-note').hidden = !first.demonstration;
  $('demo-note').textContent = note;
  $('welcome-text').textContent = first.demonstration ? 'The demonstration model knows a little arithmetic, look-ups and small talk.' : 'Model ' + first.id;
  let version = {};
  try { version = await call('/version'); } catch { /* shown as unknown */ }
  const rows = {Model: first.id, 'Context length': (first.max_model_len || 0).toLocaleString('en') + ' tokens',
    Version: (version.version || 'unknown') + (version.commit ? ' (' + version.commit.slice(0, 7) + ')' : ''), API: location.origin + '/v1'};
  $('about').replaceChildren(...Object.entries(rows).flatMap(([k, v]) => [make('dt', {}, k), make('dd', {}, String(v))]));
}

function openSettings() {
  const s = conversation.settings;
  for (const [id, name] of [['system', 'system'], ['temperature', 'temperature'], ['top-p', 'top_p'], ['max-tokens', 'max_tokens'], ['tools', 'tools']]) {
    $(id).value = s[name];
  }
  $('settings-error').textContent = '';
  $('settings').showModal();
}

async function takeSettings() {
  const s = conversation.settings;
  for (const [id, name] of [['system', 'system'], ['temperature', 'temperature'], ['top-p', 'top_p'], ['max-tokens', 'max_tokens'], ['tools', 'tools']]) {
    s[name] = $(id).value;
  }
  if (conversation.messages.length) await save();
}

const openSidebar = () => { $('sidebar').classList.add('open'); $('scrim').hidden = false; $('close-sidebar').focus(); };
const closeSidebar = () => { $('sidebar').classList.remove('open'); $('scrim').hidden = true; };

async function exportAll() {
  const text = JSON.stringify({schema: 'rorqual.conversations/1', conversations: await store.all()}, null, 1);
  const link = make('a', {href: URL.createObjectURL(new Blob([text], {type: 'application/json'})), download: 'rorqual-conversations.json'});
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

async function importFile(file) {
  try {
    const list = JSON.parse(await file.text()).conversations.map(checkedConversation).filter(Boolean);
    for (const item of list) await store.put(item);
    await showHistory();
    alert(list.length + ' conversations imported.');
  } catch (error) {
    alert('This file cannot be imported: ' + error.message);
  }
}

function fitInput() {
  const input = $('input');
  input.style.height = 'auto';
  input.style.height = Math.min(input.scrollHeight + 2, innerHeight * 0.4) + 'px';
}

function setTheme(name) {
  document.documentElement.dataset.theme = name;
}

function wire() {
  $('composer').addEventListener('submit', (event) => {
    event.preventDefault();
    const text = $('input').value;
    if (!text.trim() || running) return;
    $('input').value = '';
    fitInput();
    submit(text);
  });
  $('input').addEventListener('input', fitInput);
  $('input').addEventListener('keydown', (event) => {
    if (event.key === 'Enter' && !event.shiftKey && !event.isComposing) { event.preventDefault(); $('composer').requestSubmit(); }
  });
  $('stop').addEventListener('click', stopAnswer);
  $('new-chat').addEventListener('click', startNew);
  $('search').addEventListener('input', showHistory);
  $('thinking').addEventListener('change', () => { conversation.settings.thinking = $('thinking').value; });
  $('open-settings').addEventListener('click', openSettings);
  $('settings').addEventListener('close', takeSettings);
  $('settings-ok').addEventListener('click', (event) => {
    try { if ($('tools').value.trim() && !Array.isArray(JSON.parse($('tools').value))) throw new Error('it must be a list'); } catch (error) {
      event.preventDefault();
      $('settings-error').textContent = 'Tools: ' + error.message;
    }
  });
  $('open-sidebar').addEventListener('click', openSidebar);
  $('close-sidebar').addEventListener('click', closeSidebar);
  $('scrim').addEventListener('click', closeSidebar);
  $('export').addEventListener('click', exportAll);
  $('import').addEventListener('click', () => $('import-file').click());
  $('import-file').addEventListener('change', () => { if ($('import-file').files[0]) importFile($('import-file').files[0]); $('import-file').value = ''; });
  $('delete-all').addEventListener('click', async () => {
    if (!confirm('Delete all conversations in this browser?')) return;
    await store.clear();
    startNew();
  });
  $('theme').addEventListener('click', () => {
    const next = document.documentElement.dataset.theme === 'dark' ? 'light' : 'dark';
    setTheme(next);
    try { localStorage.setItem('rorqual-theme', next); } catch { /* not kept */ }
  });
  $('log').addEventListener('scroll', () => { $('to-bottom').hidden = isAtEnd(); });
  $('to-bottom').addEventListener('click', scrollToEnd);
  document.addEventListener('keydown', (event) => {
    if (event.key === 'Escape' && !document.querySelector('dialog[open]')) { stopAnswer(); closeSidebar(); }
    if (event.altKey && event.key.toLowerCase() === 'n') { event.preventDefault(); startNew(); }
    if (event.altKey && event.key.toLowerCase() === 's') { event.preventDefault(); openSettings(); }
  });
}

async function main() {
  let theme = null;
  try { theme = localStorage.getItem('rorqual-theme'); } catch { /* none kept */ }
  const dark = matchMedia('(prefers-color-scheme: dark)');
  setTheme(theme || (dark.matches ? 'dark' : 'light'));
  if (!theme) dark.addEventListener('change', (e) => setTheme(e.matches ? 'dark' : 'light'));
  await store.open();
  conversation = newConversation();
  wire();
  showConversation();
  await showHistory();
  // A link may fill the box, but never sends: another site must not be able to make requests through this page.
  $('input').value = new URLSearchParams(location.search).get('q') || '';
  fitInput();
  await connect();
  $('input').focus();
}

main();
