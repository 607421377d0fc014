/*
 * text_sentences.c - sentences by their marks and lines. No rule is right for all texts. These are
 * made so that a question stands alone and a fact stays whole, in prose, dialogue and code. Where a
 * sentence is cut in two all the same, what is taken of it takes its neighbours along.
 */
#include "policy/recall/text_sentences.h"

#include "base/utf8.h"

/* A line that is shorter was not wrapped: it ends where its writer ended it. */
#define WRAPPED_BYTES 40

/* Marks that end a sentence whatever follows them. */
static const struct {
    const char *mark;
    bool asks;
} marks[] = {
    {"\xe3\x80\x82", false}, /* ideographic full stop */
    {"\xef\xbc\x81", false}, /* full-width ! */
    {"\xef\xbc\x9f", true},  /* full-width ? */
    {"\xd8\x9f", true},      /* Arabic ? */
    {"\xcd\xbe", true},      /* Greek ; */
    {"\xe1\x8d\xa7", true},  /* Ethiopic ? */
    {"\xe2\x80\xbd", true},  /* interrobang */
    {"\xe2\x81\x87", true},  /* ?? */
    {"\xe0\xa5\xa4", false}, /* danda */
};

/* Behind these a full stop ends no sentence. */
static const char *const titles[] = {"dr", "mr", "mrs", "ms", "prof", "st", "vs", "no", "jr", "sr"};

/* A sentence that begins with one of these wants an answer, without a question mark, too. */
static const char *const demands[] = {
    "answer", "complete", "count",     "describe",  "explain", "find",      "give",   "identify",
    "list",   "name",     "please",    "provide",   "quote",   "recall",    "repeat", "say",
    "show",   "state",    "summarise", "summarize", "tell",    "translate", "write",
};

/* The same where it ends with no mark at all: with a full stop it tells something. */
static const char *const pronouns[] = {
    "how", "what", "when", "where", "which", "who", "whom", "whose", "why",
};

/* Other words that questions begin with; the second sort only before a pronoun ("on which"). */
static const char *const auxiliaries[] = {
    "are",  "can", "could",  "did", "do",   "does", "had",   "has",
    "have", "is",  "should", "was", "were", "will", "would",
};
static const char *const prepositions[] = {
    "after", "at", "before", "by", "during", "for",   "from", "in",
    "of",    "on", "since",  "to", "under",  "until", "with",
};

static bool is_letter(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || ((uint8_t)c & 0x80) != 0;
}

static bool is_small(char c)
{
    return c >= 'a' && c <= 'z';
}

static char lower(char c)
{
    return c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c;
}

static bool is_word(const char *text, size_t n, const char *const *words, size_t n_word)
{
    for (size_t i = 0; i < n_word; i++) {
        size_t k = 0;
        while (k < n && words[i][k] != '\0' && lower(text[k]) == words[i][k])
            k++;
        if (k == n && words[i][k] == '\0')
            return true;
    }
    return false;
}

static size_t end_of_word(const char *text, size_t len, size_t at)
{
    while (at < len && is_letter(text[at]))
        at++;
    return at;
}

/* Whether the word at `at` is one that sentences which ask begin with. */
static bool begins_request(const char *text, size_t len, size_t at)
{
    size_t n = end_of_word(text, len, at) - at;
    return is_word(text + at, n, demands, PI_LEN(demands)) ||
           is_word(text + at, n, pronouns, PI_LEN(pronouns));
}

/* The same for sentences that end with a question mark. */
static bool begins_question(const char *text, size_t len, size_t at)
{
    size_t end = end_of_word(text, len, at), next = end;
    if (begins_request(text, len, at) ||
        is_word(text + at, end - at, auxiliaries, PI_LEN(auxiliaries)))
        return true;
    while (next < len && text[next] == ' ')
        next++;
    size_t n = end_of_word(text, len, next) - next;
    return is_word(text + at, end - at, prepositions, PI_LEN(prepositions)) &&
           is_word(text + next, n, pronouns, PI_LEN(pronouns));
}

/* Bytes of the mark at text [n], 0: none. */
static size_t mark_at(const char *text, size_t n, bool *asks)
{
    for (size_t i = 0; i < PI_LEN(marks); i++) {
        size_t len = strlen(marks[i].mark);
        if (len <= n && memcmp(text, marks[i].mark, len) == 0) {
            *asks = marks[i].asks;
            return len;
        }
    }
    return 0;
}

/* Bytes of a closing quotation mark or bracket at text [n], 0: none. */
static size_t closing_at(const char *text, size_t n)
{
    if (n > 0 && (*text == '"' || *text == '\'' || *text == ')' || *text == ']' || *text == '*'))
        return 1;
    if (n >= 3 && (memcmp(text, "\xe2\x80\x9d", 3) == 0 || memcmp(text, "\xe2\x80\x99", 3) == 0))
        return 3;
    return n >= 2 && memcmp(text, "\xc2\xbb", 2) == 0 ? 2 : 0;
}

static size_t skip_space(const char *text, size_t len, size_t at)
{
    while (at < len && pi_is_space(text[at]))
        at++;
    return at;
}

/* Whether the word before the full stop at `at` is an initial or a title. */
static bool is_abbreviated(const char *text, size_t begin, size_t at)
{
    size_t word = at;
    while (word > begin && is_letter(text[word - 1]))
        word--;
    if (at - word == 1)
        return text[word] >= 'A' && text[word] <= 'Z';
    return is_word(text + word, at - word, titles, PI_LEN(titles));
}

/* Where the sentence from begin on ends, if it ends with the run of . ! ? at `at`; else 0. */
static size_t end_of_run(const char *text, size_t len, size_t begin, size_t at, bool *asks)
{
    size_t end = at;
    bool question = false, quoted = false;
    for (; end < len && (text[end] == '.' || text[end] == '!' || text[end] == '?'); end++)
        question = question || text[end] == '?';
    for (size_t n; (n = closing_at(text + end, len - end)) > 0; end += n)
        quoted = quoted || text[end] != ')';
    if (end < len && !pi_is_space(text[end]))
        return 0;
    size_t next = skip_space(text, len, end);
    bool small = next < len && is_small(text[next]) && !begins_request(text, len, next);
    bool line_ends = next == len || memchr(text + end, '\n', next - end) != NULL;
    if (question && at > begin && text[at - 1] == ' ' && small && !line_ends)
        return 0; /* a ? b : c */
    if (small && !line_ends && (quoted || !question))
        return 0;
    if (!question && text[at] == '.' && end == at + 1 && is_abbreviated(text, begin, at))
        return 0;
    *asks = question && !quoted;
    return end;
}

/* Whether the sentence goes on behind the end of a line at `at`, which began at `line`. */
static bool goes_on(const char *text, size_t len, size_t line, size_t at)
{
    size_t next = at + 1;
    while (next < len && (text[next] == ' ' || text[next] == '\r'))
        next++;
    if (next == len || text[next] == '\n' || at - line < WRAPPED_BYTES)
        return false;
    if (next > at + 2 || strchr(";{}):>", text[at - 1]) != NULL) /* code */
        return false;
    return is_small(text[next]) && !begins_request(text, len, next);
}

/* Back from a cut to the end of a word, or of a character at least. */
static size_t cut_back(const char *text, size_t begin, size_t end)
{
    for (size_t at = end; at > begin + TEXT_SENTENCE_BYTES / 2; at--)
        if (pi_is_space(text[at]))
            return at;
    while (end > begin + 1 && ((uint8_t)text[end] & 0xc0) == 0x80)
        end--;
    return end;
}

static size_t find_end(const char *text, size_t len, size_t begin, bool *asks)
{
    size_t line = begin, end;
    for (size_t at = begin; at < len; at++) {
        if (at - begin >= TEXT_SENTENCE_BYTES)
            return cut_back(text, begin, at);
        if (text[at] == '\n') {
            if (!goes_on(text, len, line, at))
                return at;
            line = at + 1;
        } else if (text[at] == '.' || text[at] == '!' || text[at] == '?') {
            if ((end = end_of_run(text, len, begin, at, asks)) > 0)
                return end;
        } else if (text[at] == ';' && at + 2 < len && text[at + 1] == ' ' && text[at + 2] >= 'A' &&
                   text[at + 2] <= 'Z') {
            return at + 1;
        } else if (((uint8_t)text[at] & 0x80) != 0 &&
                   (end = mark_at(text + at, len - at, asks)) > 0) {
            end += at;
            for (size_t n; (n = closing_at(text + end, len - end)) > 0;)
                end += n;
            return end;
        }
    }
    return len;
}

bool text_sentence_next(const char *text, size_t len, size_t *at, struct text_sentence *out)
{
    size_t begin = skip_space(text, len, *at);
    if (begin == len)
        return false;
    *out = (struct text_sentence){.begin = begin};
    out->end = find_end(text, len, begin, &out->asks);
    *at = out->end;
    while (out->end > begin + 1 && pi_is_space(text[out->end - 1]))
        out->end--;
    while (begin < out->end && !is_letter(text[begin]))
        begin++;
    size_t n = end_of_word(text, out->end, begin) - begin;
    char last = text[out->end - 1];
    bool open = is_letter(last) || (last >= '0' && last <= '9') || last == ':';
    out->demands = is_word(text + begin, n, demands, PI_LEN(demands)) ||
                   (open && is_word(text + begin, n, pronouns, PI_LEN(pronouns)));
    return true;
}

/* Whether a sentence's question, or where it has no question mark its demand, can begin at `at`. */
static bool begins_here(const char *text, const struct text_sentence *s, size_t at)
{
    if (s->asks)
        return begins_question(text, s->end, at);
    return is_word(text + at, end_of_word(text, s->end, at) - at, demands, PI_LEN(demands));
}

size_t text_question_begin(const char *text, const struct text_sentence *s)
{
    size_t begin = s->begin, last = s->begin;
    while (begin < s->end && !is_letter(text[begin]))
        begin++;
    if (begin == s->end || begins_here(text, s, begin))
        return s->begin;
    for (size_t at = begin + 1; at < s->end; at++)
        if (pi_is_space(text[at - 1]) && text[at] >= 'A' && text[at] <= 'Z' &&
            begins_here(text, s, at))
            last = at;
    return last;
}
