// SPDX-License-Identifier: Apache-2.0
#include "kl/panel_prompts.h"

namespace rorqual::kl {
namespace {

constexpr std::string_view kPrompts[] = {
    // Explain (English).
    "Why does a metal spoon feel colder than a wooden one in the same room?",
    "Explain to a ten-year-old how a lighthouse helps ships at night.",
    "What is the difference between weather and climate? Answer in three sentences.",
    "How does a hash table find a key without looking at every entry?",
    "Describe what happens in a bread dough while it rises.",
    "Why do we see the same side of the Moon all the time?",
    "What does it mean that a sorting algorithm is stable? Give a tiny example.",
    "Explain the idea of compound interest without using a formula.",
    "How do noise-cancelling headphones remove sound?",
    "Why is the deadlock of two threads impossible if both take the locks in the same order?",
    "Give two reasons why ice floats on water and why that matters for lakes.",
    "In one paragraph: what is a checksum, and what can it not do?",
    // Code (English).
    "Write a Python function that returns the second largest number of a list, or None if there is none.",
    "Write a C function that reverses a string in place. No library calls.",
    "Show a Rust function that counts the words of a text, case-insensitively.",
    "Write a shell one-liner that prints the five largest files below the current folder.",
    "Fix this Python code and say what was wrong:\n\ndef mean(xs):\n    for x in xs:\n        total += x\n   "
    " return "
    "total / len(xs)",
    "Write an SQL query: for every customer the date of the last order, newest first. Tables: "
    "customers(id, name), orders(id, customer_id, placed_on).",
    "Write a JavaScript function `debounce(f, ms)` and one example of its use.",
    "What does this print, and why?\n\n```python\na = [1, 2, 3]\nb = a\nb += [4]\nprint(a)\n```",
    "Write a regular expression for a 24-hour time such as 07:45 and explain its parts.",
    "Translate this loop into a list comprehension:\n\nresult = []\nfor n in range(20):\n    if n % 3 == "
    "0:\n        "
    "result.append(n * n)",
    "Write a Go function that merges two sorted slices of ints into one sorted slice.",
    "Write a unit test with three cases for a function `is_leap_year(year)`.",
    "In C++, when is a `std::string_view` dangerous? Show a short example.",
    "Write a Makefile with the targets all, clean and test for a single file program main.c.",
    // Arithmetic and logic (English).
    "What is 347 + 586?",
    "Compute 24 * 17 and show the steps.",
    "A train leaves at 14:35 and arrives at 17:10. How long does the trip take?",
    "I buy 3 notebooks at 2.40 each and 2 pens at 1.15 each, and pay with a 20. How much change do I get?",
    "What is 15 % of 240?",
    "Solve for x: 5x - 7 = 3x + 9.",
    "How many minutes are there in two and a half days?",
    "A rectangle is 12 cm long and its perimeter is 40 cm. What is its area?",
    "List the prime numbers between 40 and 60.",
    "Anna is older than Ben, Carl is younger than Ben, and Dora is older than Anna. Who is the youngest?",
    "Convert the binary number 101101 to decimal.",
    "If five machines make five parts in five minutes, how long do 100 machines need for 100 parts?",
    // JSON and formats (English).
    "Return a JSON object with the keys name, year and tags for a made-up film. Only the JSON.",
    "Turn this line into JSON: \"Milk, 1.29, 2 pieces; Bread, 2.80, 1 piece\".",
    "Write a JSON Schema for an object with a required string `id` and an optional integer `count` that is "
    "at "
    "least 0.",
    "Make a Markdown table of the four seasons with their months on the northern half of the Earth.",
    "Extract the date, the place and the amount as JSON: On 3 May 2021 we paid 412.50 euros in Lisbon.",
    "Write a CSV with a header and three rows about planets: name, moons, diameter in km.",
    "Convert to YAML: {\"server\": {\"port\": 8080, \"hosts\": [\"a\", \"b\"]}}",
    "Give me a JSON array with the first eight square numbers.",
    // Summarise and rewrite (English).
    "Summarise in one sentence: The library will close for two weeks in July because the heating is being "
    "replaced. Books that fall due in that time can be returned until the end of the month without a fee.",
    "Make this polite and shorter: You did not send the file again, and now everybody has to wait because of "
    "you.",
    "Give a title of at most six words to a text about bees that find their way home by the position of the "
    "sun.",
    "List the three claims in this text: Our pump uses half the power of the old one, it is quieter, and it "
    "needs "
    "no oil.",
    "Rewrite in the passive voice: The gardener cut the hedge before the storm reached the village.",
    "Write a two-line commit message for a change that stops the parser from reading past the end of the "
    "buffer.",
    "Summarise the plot of a story about a clockmaker who repairs a clock that runs backwards. Two "
    "sentences.",
    // Translate and chat (English).
    "Translate into French: The bridge is closed until Monday, please use the ferry.",
    "Translate into German: She had forgotten where she put the key to the cellar.",
    "How do you say \"good evening\" and \"see you tomorrow\" in Japanese? Add the reading.",
    "Hello! Who are you, and what can you help me with?",
    "Suggest three names for a small ship and say why.",
    "Write a four-line poem about rain on a tin roof.",
    "I have rice, eggs and spinach. What can I cook in fifteen minutes?",
    // Italian.
    "Perché il cielo è azzurro di giorno e rosso al tramonto?",
    "Scrivi una funzione Python che dica se una parola è un palindromo.",
    "Quanto fa 128 diviso 8? Spiega il calcolo in una riga.",
    "Riassumi in una frase: Il treno delle nove è stato soppresso, chi ha il biglietto può salire su quello "
    "delle "
    "dieci senza pagare altro.",
    "Traduci in inglese: Domani mattina il mercato apre più tardi del solito.",
    // French.
    "Explique en trois phrases pourquoi les feuilles jaunissent en automne.",
    "Écris une requête SQL qui compte les commandes par mois.",
    "Un cycliste roule à 18 km/h pendant 2 h 30. Quelle distance parcourt-il ?",
    "Donne un objet JSON avec les clés ville, pays et population pour Lyon. Seulement le JSON.",
    "Traduis en espagnol : Le magasin est fermé à cause de la neige.",
    // German.
    "Warum klingt die eigene Stimme auf einer Aufnahme fremd?",
    "Schreibe eine Funktion in C, die die gesetzten Bits einer Zahl zählt.",
    "Ein Hemd kostet 45 Euro und wird um 20 % billiger. Was kostet es jetzt?",
    "Fasse in einem Satz zusammen: Die Sitzung beginnt eine Stunde später, weil der Saal am Vormittag noch "
    "gestrichen wird.",
    "Übersetze ins Englische: Wer früh losgeht, findet noch einen Platz am Fenster.",
    // Spanish.
    "¿Por qué el agua del mar es salada y la de los ríos no?",
    "Escribe un bucle en JavaScript que imprima los números del 1 al 30 que son múltiplos de 4.",
    "Si compro 6 manzanas a 0,35 euros cada una, ¿cuánto pago en total?",
    "Haz una lista de cinco consejos para dormir mejor.",
    "Traduce al inglés: El puente viejo se ve mejor desde la otra orilla.",
    // Chinese.
    "为什么冬天早上的窗户上会有水珠?",
    "用 Python 写一个函数,返回列表中出现次数最多的元素。",
    "小明有 48 块糖,平均分给 6 个朋友,每人几块?还剩几块?",
    "请把这句话翻译成英文:图书馆下周一不开门。",
    "用三句话介绍一下茶是怎样制成的。",
    // Japanese.
    "虹はなぜ七色に見えるのですか。やさしく説明してください。",
    "次の文を英語に訳してください:駅の前に新しいパン屋ができました。",
    "1 から 10 までの偶数の合計を求めてください。",
    "東京と大阪の違いを三つ挙げてください。",
    // Russian.
    "Почему зимой дни короче, чем летом?",
    "Напиши функцию на Python, которая считает гласные буквы в строке.",
    "Поезд прошёл 240 километров за 3 часа. Какова его средняя скорость?",
    "Переведи на английский: Завтра обещают снег, возьми тёплую куртку.",
    // Arabic.
    "لماذا تهاجر الطيور في فصل الشتاء؟",
    "ما هو ناتج 36 ضرب 5؟ اشرح الخطوات.",
    "اكتب جملة قصيرة عن البحر وترجمها إلى الإنجليزية.",
    // Korean, Hindi, Greek, Hebrew.
    "김치는 어떻게 만드나요? 다섯 단계로 설명해 주세요.",
    "पानी उबलने पर भाप क्यों बनती है? सरल शब्दों में समझाइए।",
    "Γιατί το λάδι δεν ανακατεύεται με το νερό;",
    "כמה הם 17 ועוד 28? הסבר בקצרה.",
};

static_assert(std::size(kPrompts) == 100);

}  // namespace

std::span<const std::string_view> panel_prompts() {
  return kPrompts;
}

}  // namespace rorqual::kl
