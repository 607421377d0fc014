/*
 * longbench_score.c - LongBench's metrics. They compare characters and words as its authors' Python
 * does, quirks included, so that figures can be set beside theirs. tests/golden/longbench.jsonl has
 * theirs for the same strings. Invariant: pure functions of two texts.
 *
 * Two things differ. Where a sentence has hundreds of words the package "rouge" exhausts Python's
 * stack, which the authors count as 0; here it is scored. And letters are lowered in the scripts
 * that lower_of lists.
 */
#include "longbench.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- characters ---- */

struct chars {
    uint32_t *c; /* [n] owned */
    int32_t n;
};

/* Code points; bytes that are no UTF-8 stand for themselves. */
static struct chars decode(const char *text)
{
    size_t len = strlen(text);
    struct chars out = {calloc(len + 1, sizeof(uint32_t)), 0};
    for (size_t i = 0; out.c != NULL && i < len;) {
        unsigned char b = (unsigned char)text[i];
        int more = b >= 0xf0 ? 3 : b >= 0xe0 ? 2 : b >= 0xc0 ? 1 : 0;
        uint32_t c = more == 0 ? b : b & (0x3fu >> more);
        size_t k = 1;
        while (k <= (size_t)more && i + k < len && ((unsigned char)text[i + k] & 0xc0) == 0x80)
            c = c << 6 | ((unsigned char)text[i + k++] & 0x3f);
        if (k <= (size_t)more) {
            c = b;
            k = 1;
        }
        out.c[out.n++] = c;
        i += k;
    }
    return out;
}

struct range {
    uint32_t first, last;
};

static bool is_in(const struct range *list, size_t n, uint32_t c)
{
    for (size_t i = 0; i < n; i++)
        if (c >= list[i].first && c <= list[i].last)
            return true;
    return false;
}

#define IS_IN(list, c) is_in(list, sizeof(list) / sizeof(list[0]), c)

static bool is_space(uint32_t c)
{
    static const struct range spaces[] = {
        {0x09, 0x0d},     {0x1c, 0x20},     {0x85, 0x85},     {0xa0, 0xa0},     {0x1680, 0x1680},
        {0x2000, 0x200a}, {0x2028, 0x2029}, {0x202f, 0x202f}, {0x205f, 0x205f}, {0x3000, 0x3000}};
    return IS_IN(spaces, c);
}

static bool is_punctuation(uint32_t c)
{
    static const struct range marks[] = {{'!', '/'}, {':', '@'}, {'[', '`'}, {'{', '~'}};
    return IS_IN(marks, c);
}

/* Letters, digits and _; beyond ASCII what is not known to be a sign. */
static bool is_word(uint32_t c)
{
    static const struct range signs[] = {
        {0x00, 0x2f},     {0x3a, 0x40},     {0x5b, 0x5e},     {0x60, 0x60},     {0x7b, 0xa9},
        {0xab, 0xb1},     {0xb4, 0xb4},     {0xb6, 0xb8},     {0xbb, 0xbb},     {0xbf, 0xbf},
        {0xd7, 0xd7},     {0xf7, 0xf7},     {0x2000, 0x206f}, {0x207a, 0x207e}, {0x208a, 0x208e},
        {0x20a0, 0x20ff}, {0x2190, 0x245f}, {0x2500, 0x2bff}, {0x3000, 0x3004}, {0x3008, 0x3020},
        {0xfe10, 0xfe6f}, {0xff01, 0xff0f}, {0xff1a, 0xff20}, {0xff3b, 0xff40}, {0xff5b, 0xff65},
        {0xfffd, 0xfffd}};
    return !IS_IN(signs, c);
}

/* Latin, Greek, Cyrillic and full-width letters. */
static uint32_t lower_of(uint32_t c)
{
    static const struct range far32[] = {{'A', 'Z'},     {0xc0, 0xd6},   {0xd8, 0xde},
                                         {0x391, 0x3ab}, {0x410, 0x42f}, {0xff21, 0xff3a}};
    static const struct range even[] = {{0x100, 0x12f},   {0x132, 0x137},  {0x14a, 0x177},
                                        {0x460, 0x481},   {0x48a, 0x4bf},  {0x4d0, 0x52f},
                                        {0x1e00, 0x1e95}, {0x1ea0, 0x1eff}};
    static const struct range odd[] = {{0x139, 0x148}, {0x179, 0x17e}};
    if (IS_IN(far32, c))
        return c + 32;
    if (c >= 0x400 && c <= 0x40f)
        return c + 80;
    if (IS_IN(even, c))
        return c % 2 == 0 ? c + 1 : c;
    if (IS_IN(odd, c))
        return c % 2 == 1 ? c + 1 : c;
    return c == 0x178 ? 0xff : c;
}

/* ---- words ---- */

/* Parts of characters. */
struct words {
    const uint32_t **at; /* [n] owned */
    int32_t *len;        /* [n] owned */
    int32_t n;
};

static void words_free(struct words *w)
{
    free(w->at);
    free(w->len);
}

/* Room for the words of n characters; false: no memory. */
static bool words_make(struct words *w, int32_t n)
{
    *w = (struct words){calloc((size_t)n + 1, sizeof(*w->at)),
                        calloc((size_t)n + 1, sizeof(int32_t)), 0};
    return w->at != NULL && w->len != NULL;
}

static void words_split(struct words *w, const uint32_t *c, int32_t n)
{
    for (int32_t i = 0; i < n;) {
        int32_t begin = i;
        while (i < n && !is_space(c[i]))
            i++;
        if (i > begin) {
            w->at[w->n] = c + begin;
            w->len[w->n++] = i - begin;
        }
        i++;
    }
}

static bool same_word(const struct words *a, int32_t i, const struct words *b, int32_t j)
{
    return a->len[i] == b->len[j] &&
           memcmp(a->at[i], b->at[j], (size_t)a->len[i] * sizeof(uint32_t)) == 0;
}

static bool is_article(const uint32_t *c, int32_t n)
{
    return (n == 1 && c[0] == 'a') || (n == 2 && c[0] == 'a' && c[1] == 'n') ||
           (n == 3 && c[0] == 't' && c[1] == 'h' && c[2] == 'e');
}

/* Lower case, without the punctuation of ASCII; articles become spaces. */
static void normalise(struct chars *t)
{
    int32_t n = 0;
    for (int32_t i = 0; i < t->n; i++)
        if (!is_punctuation(t->c[i]))
            t->c[n++] = lower_of(t->c[i]);
    t->n = n;
    for (int32_t i = 0; i < n;) {
        int32_t begin = i;
        while (i < n && is_word(t->c[i]))
            i++;
        if (is_article(t->c + begin, i - begin))
            for (int32_t k = begin; k < i; k++)
                t->c[k] = ' ';
        i += i == begin;
    }
}

/* Words that both have, as often as both have them; the words of b are used up. */
static int32_t count_common(const struct words *a, struct words *b)
{
    int32_t n = 0;
    for (int32_t i = 0; i < a->n; i++)
        for (int32_t j = 0; j < b->n; j++)
            if (same_word(a, i, b, j)) {
                b->len[j] = -1;
                n++;
                break;
            }
    return n;
}

static bool qa_f1(struct chars *answer, struct chars *truth, double *score)
{
    struct words a, t;
    normalise(answer);
    normalise(truth);
    bool ok = words_make(&a, answer->n);
    ok = words_make(&t, truth->n) && ok;
    *score = 0.0;
    if (ok) {
        words_split(&a, answer->c, answer->n);
        words_split(&t, truth->c, truth->n);
        int32_t common = count_common(&a, &t);
        double precision = a.n > 0 ? (double)common / a.n : 0.0;
        double recall = t.n > 0 ? (double)common / t.n : 0.0;
        if (common > 0)
            *score = (2 * precision * recall) / (precision + recall);
    }
    words_free(&a);
    words_free(&t);
    return ok;
}

/* ---- ROUGE-L ---- */

/* A summary: words by number, sentence by sentence. */
struct summary {
    struct words words;
    int32_t *id;  /* [words.n] the first word of both summaries that is the same; owned */
    int32_t *end; /* [n_sentence] owned */
    int32_t n_sentence;
};

static void summary_free(struct summary *s)
{
    words_free(&s->words);
    free(s->id);
    free(s->end);
}

/* Sentences are what full stops part. One of blanks alone has one empty word. */
static bool summary_make(struct summary *s, const struct chars *t)
{
    *s = (struct summary){.id = calloc((size_t)t->n + 1, sizeof(int32_t)),
                          .end = calloc((size_t)t->n + 1, sizeof(int32_t))};
    if (!words_make(&s->words, t->n) || s->id == NULL || s->end == NULL)
        return false;
    for (int32_t i = 0; i < t->n; i++) {
        int32_t begin = i;
        while (i < t->n && t->c[i] != '.')
            i++;
        int32_t n = s->words.n;
        if (i == begin)
            continue;
        words_split(&s->words, t->c + begin, i - begin);
        if (s->words.n == n) {
            s->words.at[n] = t->c + begin;
            s->words.len[s->words.n++] = 0;
        }
        s->end[s->n_sentence++] = s->words.n;
    }
    return true;
}

/* Numbers the words of both, from `first` on those that `known` lacks; returns how many differ. */
static int32_t number(struct summary *s, const struct summary *known, int32_t first)
{
    int32_t n = 0;
    for (int32_t i = 0; i < s->words.n; i++) {
        int32_t id = -1;
        for (int32_t j = 0; j < i && id < 0; j++)
            id = same_word(&s->words, i, &s->words, j) ? s->id[j] : -1;
        n += id < 0;
        for (int32_t j = 0; known != NULL && j < known->words.n && id < 0; j++)
            id = same_word(&s->words, i, &known->words, j) ? known->id[j] : -1;
        s->id[i] = id >= 0 ? id : first + i;
    }
    return n;
}

/* Marks the words of the longest common subsequence of x [n] and y [m] that the package finds.
   table [(n + 1) * (m + 1)]. */
static void mark_common(const int32_t *x, int32_t n, const int32_t *y, int32_t m, int32_t *table,
                        bool *marked)
{
    size_t row = (size_t)m + 1;
    memset(table, 0, row * sizeof(*table));
    for (int32_t i = 1; i <= n; i++) {
        int32_t *at = table + (size_t)i * row;
        at[0] = 0;
        for (int32_t j = 1; j <= m; j++) {
            int32_t up = at[j - (int32_t)row], left = at[j - 1];
            at[j] = x[i - 1] == y[j - 1] ? at[j - 1 - (int32_t)row] + 1 : up > left ? up : left;
        }
    }
    for (int32_t i = n, j = m; i > 0 && j > 0;) {
        const int32_t *at = table + (size_t)i * row + j;
        if (x[i - 1] == y[j - 1]) {
            marked[x[i - 1]] = true;
            i--;
            j--;
        } else if (at[-(int32_t)row] > at[-1]) {
            i--;
        } else {
            j--;
        }
    }
}

/* Of different words: F of those that lie on a common subsequence of two sentences. */
static bool rouge_l(const struct chars *answer, const struct chars *truth, double *score)
{
    struct summary a, t;
    bool ok = summary_make(&a, answer);
    ok = summary_make(&t, truth) && ok;
    int32_t n_word = a.words.n + t.words.n, common = 0;
    int32_t *table =
        ok ? calloc(((size_t)a.words.n + 1) * ((size_t)t.words.n + 1), sizeof(*table)) : NULL;
    bool *marked = calloc((size_t)n_word + 1, sizeof(*marked));
    ok = ok && table != NULL && marked != NULL;
    *score = 0.0;
    if (ok && a.n_sentence > 0 && t.n_sentence > 0) {
        int32_t n_t = number(&t, NULL, 0), n_a = number(&a, &t, t.words.n);
        for (int32_t i = 0; i < t.n_sentence; i++)
            for (int32_t j = 0; j < a.n_sentence; j++) {
                int32_t x = i > 0 ? t.end[i - 1] : 0, y = j > 0 ? a.end[j - 1] : 0;
                mark_common(t.id + x, t.end[i] - x, a.id + y, a.end[j] - y, table, marked);
            }
        for (int32_t i = 0; i < n_word; i++)
            common += marked[i];
        double recall = (double)common / n_t, precision = (double)common / n_a;
        *score = 2.0 * ((precision * recall) / (precision + recall + 1e-8));
    }
    free(table);
    free(marked);
    summary_free(&a);
    summary_free(&t);
    return ok;
}

/* ---- code ---- */

#define POPULAR_FROM 200 /* characters from which difflib leaves out those that are frequent */

/* difflib's sequences a and b, a part of each. */
struct part {
    int32_t a, a_end, b, b_end;
};

/* Which characters of b are more than a hundredth of it. */
static void find_popular(const struct chars *b, bool *popular)
{
    for (int32_t i = 0; i < b->n && b->n >= POPULAR_FROM; i++) {
        int32_t n = 0;
        for (int32_t j = 0; j < b->n; j++)
            n += b->c[j] == b->c[i];
        popular[i] = n > b->n / 100 + 1;
    }
}

/* The longest block that both parts have, of equal ones the first in a, then in b. Frequent
   characters begin no block, but lengthen it. len [2][b->n + 1] */
static struct part longest_block(const struct chars *a, const struct chars *b, const bool *popular,
                                 struct part p, int32_t *len)
{
    struct part best = {p.a, p.a, p.b, p.b};
    int32_t *before = len, *now = len + b->n + 1;
    memset(before, 0, ((size_t)b->n + 1) * sizeof(*before));
    for (int32_t i = p.a; i < p.a_end; i++) {
        memset(now, 0, ((size_t)b->n + 1) * sizeof(*now));
        for (int32_t j = p.b; j < p.b_end; j++) {
            if (popular[j] || a->c[i] != b->c[j])
                continue;
            now[j + 1] = before[j] + 1;
            if (now[j + 1] > best.a_end - best.a)
                best = (struct part){i - now[j + 1] + 1, i + 1, j - now[j + 1] + 1, j + 1};
        }
        int32_t *free_row = before;
        before = now;
        now = free_row;
    }
    while (best.a > p.a && best.b > p.b && a->c[best.a - 1] == b->c[best.b - 1]) {
        best.a--;
        best.b--;
    }
    while (best.a_end < p.a_end && best.b_end < p.b_end && a->c[best.a_end] == b->c[best.b_end]) {
        best.a_end++;
        best.b_end++;
    }
    return best;
}

/* Characters in blocks that both have, the longest first, then on both sides of it. -1: no
   memory. */
static int32_t count_blocks(const struct chars *a, const struct chars *b)
{
    bool *popular = calloc((size_t)b->n + 1, sizeof(*popular));
    int32_t *len = calloc(2 * ((size_t)b->n + 1), sizeof(*len)), n = 0, n_left = 0;
    struct part *left = calloc((size_t)a->n + 2, sizeof(*left));
    if (popular == NULL || len == NULL || left == NULL)
        n = -1;
    else
        left[n_left++] = (struct part){0, a->n, 0, b->n};
    if (n == 0)
        find_popular(b, popular);
    while (n_left > 0) {
        struct part p = left[--n_left];
        struct part block = longest_block(a, b, popular, p, len);
        if (block.a_end == block.a)
            continue;
        n += block.a_end - block.a;
        if (p.a < block.a && p.b < block.b)
            left[n_left++] = (struct part){p.a, block.a, p.b, block.b};
        if (block.a_end < p.a_end && block.b_end < p.b_end)
            left[n_left++] = (struct part){block.a_end, p.a_end, block.b_end, p.b_end};
    }
    free(popular);
    free(len);
    free(left);
    return n;
}

/* The first line that is no comment and no fence, "" without any. */
static struct chars first_code(const struct chars *t)
{
    int32_t i = 0;
    while (i < t->n && t->c[i] == '\n')
        i++;
    while (i <= t->n) {
        int32_t begin = i;
        bool code = true;
        for (; i < t->n && t->c[i] != '\n'; i++)
            code = code && t->c[i] != '`' && t->c[i] != '#' &&
                   !(t->c[i] == '/' && i + 1 < t->n && t->c[i + 1] == '/');
        if (code)
            return (struct chars){t->c + begin, i - begin};
        i++;
    }
    return (struct chars){t->c, 0};
}

static bool code_likeness(const struct chars *answer, const struct chars *truth, double *score)
{
    struct chars line = first_code(answer);
    *score = 0.0;
    if (line.n == truth->n && memcmp(line.c, truth->c, (size_t)line.n * sizeof(*line.c)) == 0)
        *score = 1.0;
    if (*score > 0.0 || line.n == 0 || truth->n == 0)
        return true;
    int32_t n = count_blocks(&line, truth);
    *score = rint(100 * (2.0 * n / (line.n + truth->n))) / 100.0; /* half to even, as Python */
    return n >= 0;
}

/* ---- numbers and classes ---- */

/* The digits that text goes on with from *at; false: there are none. */
static bool next_number(const char **at, const char **digits, size_t *len)
{
    *at += strcspn(*at, "0123456789");
    *digits = *at;
    *len = strspn(*at, "0123456789");
    *at += *len;
    return *len > 0;
}

/* The share of an answer's numbers that are written as `digits` [len]. */
static double share_of_numbers(const char *answer, const char *digits, size_t len)
{
    const char *one;
    size_t n;
    int32_t right = 0, all = 0;
    while (next_number(&answer, &one, &n)) {
        all++;
        right += n == len && memcmp(one, digits, n) == 0;
    }
    return all > 0 ? (double)right / all : 0.0;
}

/* The number behind a word in the truth decides. */
static double retrieval(const char *answer, const char *truth, const char *word)
{
    for (const char *at = strstr(truth, word); at != NULL; at = strstr(at + 1, word)) {
        const char *digits = at + strlen(word);
        size_t len = strspn(digits, "0123456789");
        if (len > 0)
            return share_of_numbers(answer, digits, len);
    }
    return 0.0;
}

/* Classes that the answer names. One that is a part of the truth does not count. The authors' loop
   steps over the class behind it, which therefore counts. */
static double class_score(const char *answer, const char *truth, const struct eval_strings *classes)
{
    int32_t n = 0, found = 0;
    bool skip = false;
    for (int32_t i = 0; classes != NULL && i < classes->n; i++) {
        const char *name = classes->at[i];
        if (strstr(answer, name) == NULL)
            continue;
        bool goes = !skip && strcmp(name, truth) != 0 && strstr(truth, name) != NULL;
        skip = goes;
        n += !goes;
        found += !goes && strcmp(name, truth) == 0;
    }
    return found > 0 ? 1.0 / n : 0.0;
}

pith_status eval_longbench_score(enum longbench_metric metric, const char *answer,
                                 const char *truth, const struct eval_strings *classes,
                                 double *score, pith_error *err)
{
    bool ok = true;
    *score = 0.0;
    if (metric == LONGBENCH_CLASS) {
        *score = class_score(answer, truth, classes);
    } else if (metric == LONGBENCH_COUNT) {
        *score = share_of_numbers(answer, truth, strlen(truth));
    } else if (metric == LONGBENCH_RETRIEVAL || metric == LONGBENCH_RETRIEVAL_ZH) {
        *score =
            retrieval(answer, truth, metric == LONGBENCH_RETRIEVAL ? "Paragraph " : "\u6bb5\u843d");
    } else if (metric != LONGBENCH_NONE) {
        struct chars a = decode(answer), t = decode(truth);
        ok = a.c != NULL && t.c != NULL;
        if (ok)
            ok = metric == LONGBENCH_QA_F1   ? qa_f1(&a, &t, score)
                 : metric == LONGBENCH_ROUGE ? rouge_l(&a, &t, score)
                                             : code_likeness(&a, &t, score);
        free(a.c);
        free(t.c);
    }
    return ok ? PITH_OK : eval_fail(err, PITH_NOMEM, "longbench: no memory for a score");
}
