/*
 * text_snippets.c - the sentences of spans that answer a question. Spans overlap (bleed) and begin
 * and end inside of sentences. So the same sentence comes from several, whole and in parts: one of
 * them is taken.
 *
 * Invariant: what is inserted depends on the hits and the question alone, and never has more than
 * the characters that were allowed.
 */
#include "policy/recall/text_snippets.h"

#include <math.h>
#include <stdlib.h>

#include "base/mem.h"
#include "base/utf8.h"
#include "policy/recall/text_sentences.h"

#define WORDS_MAX 64        /* of a question: a bit each */
#define PARTS_MAX 8         /* sentences that are taken for their own sake */
#define WORTH 0.5           /* of the best sentence's score: what is less is not taken */
#define COVERED 0.2         /* of the weight of a question's words, which something must have */
#define ASKED_WORDS 6       /* words that a question has at most beside its wording */
#define RARE 8              /* a word is rare that is in no more than one of RARE sentences .. */
#define RARE_SENTENCES 2    /* .. or in so few */
#define NEIGHBOUR_SHARE 0.5 /* of the weight of words that only a neighbour has */
#define NEIGHBOUR_CHARS 300 /* a longer neighbour is no context */
#define LEAST_CHARS 24      /* a shorter cut of a sentence tells nothing */

static const char heading[] = "Earlier in this text:\n";
static const char ending[] = "\n";

/* Words of questions that are not what is asked for. Where other languages ask, the weight of words
   by how many sentences have them does the same. */
static const char *const stop_words[] = {
    "a",      "about",   "above",     "after",  "all",      "also",  "an",        "and",   "answer",
    "any",    "are",     "as",        "at",     "be",       "been",  "but",       "by",    "can",
    "could",  "did",     "do",        "does",   "earlier",  "else",  "following", "for",   "from",
    "give",   "given",   "had",       "has",    "have",     "he",    "her",       "his",   "how",
    "i",      "if",      "in",        "into",   "is",       "it",    "its",       "just",  "list",
    "me",     "mention", "mentioned", "my",     "no",       "not",   "nothing",   "of",    "on",
    "only",   "or",      "our",       "please", "question", "s",     "said",      "say",   "she",
    "should", "so",      "tell",      "text",   "than",     "that",  "the",       "their", "them",
    "then",   "there",   "these",     "they",   "this",     "those", "to",        "us",    "was",
    "we",     "were",    "what",      "when",   "where",    "which", "who",       "whom",  "whose",
    "why",    "will",    "with",      "would",  "you",      "your",
};

struct word {
    const char *text; /* [len] in the question's words */
    size_t len;
    int32_t n;     /* sentences that have it */
    double weight; /* falls with n */
};

struct sentence {
    const struct text_hit *hit;
    int32_t index; /* in its hit */
    size_t begin;  /* bytes of the hit's text */
    size_t end;
    uint64_t has; /* words, as bits */
    bool twice;   /* another has it, too */
    bool taken;
    double own; /* weight of its words */
    double score;
};

struct picker {
    const struct text_wish *wish;
    char *words; /* owned */
    struct word word[WORDS_MAX];
    int32_t n_word;
    struct sentence *sentence; /* [n] owned, in the order of hits */
    int32_t n;
    int32_t cap;
    int32_t *order; /* [n] owned: by score */
};

/* ---- words ---- */

static bool is_stop_word(const char *word, size_t len)
{
    for (size_t i = 0; i < PI_LEN(stop_words); i++)
        if (strlen(stop_words[i]) == len && memcmp(stop_words[i], word, len) == 0)
            return true;
    return false;
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* Whether two words are forms of one: leave, leaves; favourite, favour. Numbers are what they
   are. */
static bool is_like(const char *a, size_t n_a, const char *b, size_t n_b)
{
    size_t least = n_a < n_b ? n_a : n_b, most = n_a < n_b ? n_b : n_a, same = 0;
    while (same < least && a[same] == b[same])
        same++;
    if (same == most)
        return true;
    if (is_digit(a[0]) || is_digit(b[0]))
        return false;
    if (same == least && least >= 3 && most - least <= 2)
        return true;
    return same >= 5 && 10 * same >= 7 * most;
}

static void read_words(struct picker *p)
{
    for (size_t i = 0; p->words[i] != '\0' && p->n_word < WORDS_MAX;) {
        const char *word = p->words + i;
        size_t len = (size_t)(strchr(word, ' ') - word);
        bool known = is_stop_word(word, len);
        for (int32_t k = 0; k < p->n_word && !known; k++)
            known = is_like(p->word[k].text, p->word[k].len, word, len);
        if (!known)
            p->word[p->n_word++] = (struct word){.text = word, .len = len};
        i += len + 1;
    }
}

static pith_status find_words(struct picker *p, struct sentence *s, pith_error *err)
{
    char *words = text_words(s->hit->text + s->begin, s->end - s->begin);
    if (words == NULL)
        return pi_fail(err, PITH_NOMEM, "no memory for the words of a sentence");
    for (size_t i = 0; words[i] != '\0';) {
        size_t len = (size_t)(strchr(words + i, ' ') - (words + i));
        for (int32_t k = 0; k < p->n_word; k++)
            if (is_like(p->word[k].text, p->word[k].len, words + i, len))
                s->has |= (uint64_t)1 << k;
        i += len + 1;
    }
    pi_mem_free(words);
    return PITH_OK;
}

/* ---- sentences ---- */

static pith_status add_sentence(struct picker *p, struct sentence s, pith_error *err)
{
    if (p->n == p->cap) {
        int32_t cap = p->cap > 0 ? 2 * p->cap : 64;
        struct sentence *grown =
            pi_mem_grow(PI_MEM_OTHER, p->sentence, (size_t)cap, sizeof(*grown));
        if (grown == NULL)
            return pi_fail(err, PITH_NOMEM, "no memory for %d sentences", cap);
        p->sentence = grown;
        p->cap = cap;
    }
    p->sentence[p->n++] = s;
    return PITH_OK;
}

static pith_status read_sentences(struct picker *p, const struct text_hits *hits, pith_error *err)
{
    for (int32_t i = 0; i < hits->n; i++) {
        const struct text_hit *hit = &hits->hit[i];
        size_t len = strlen(hit->text), at = 0;
        struct text_sentence found;
        for (int32_t k = 0; text_sentence_next(hit->text, len, &at, &found); k++) {
            struct sentence s = {.hit = hit, .index = k, .begin = found.begin, .end = found.end};
            PI_TRY(find_words(p, &s, err));
            PI_TRY(add_sentence(p, s, err));
        }
    }
    return PITH_OK;
}

/* Whether a's text lies in that of the span of b, which overlaps. */
static bool is_in(const struct sentence *a, const struct sentence *b)
{
    size_t n = a->end - a->begin, n_b = b->end - b->begin;
    if (n > n_b)
        return false;
    for (size_t i = 0; i + n <= n_b; i++)
        if (memcmp(b->hit->text + b->begin + i, a->hit->text + a->begin, n) == 0)
            return true;
    return false;
}

/* Marks sentences that another one of an overlapping span holds: of equal ones all but the
   first. */
static void mark_doubles(struct picker *p)
{
    for (int32_t i = 0; i < p->n; i++) {
        struct sentence *a = &p->sentence[i];
        for (int32_t j = 0; j < p->n && !a->twice; j++) {
            const struct sentence *b = &p->sentence[j];
            if (b->hit == a->hit || b->twice || b->hit->last <= a->hit->first ||
                a->hit->last <= b->hit->first)
                continue;
            a->twice = is_in(a, b) && (j < i || b->end - b->begin > a->end - a->begin);
        }
    }
}

/* ---- scores ---- */

static double weigh(const struct picker *p, uint64_t has)
{
    double sum = 0;
    for (int32_t k = 0; k < p->n_word; k++)
        sum += has >> k & 1 ? p->word[k].weight : 0;
    return sum;
}

/* log((n + 1) / (n_w + 1/2)) of a word that n_w of n sentences have. */
static void weigh_words(struct picker *p)
{
    int32_t n = 0;
    for (int32_t i = 0; i < p->n; i++) {
        if (p->sentence[i].twice)
            continue;
        n++;
        for (int32_t k = 0; k < p->n_word; k++)
            p->word[k].n += p->sentence[i].has >> k & 1;
    }
    for (int32_t k = 0; k < p->n_word; k++)
        p->word[k].weight = log((n + 1.0) / (p->word[k].n + 0.5));
}

/* Words of the sentences next to one in its hit. */
static uint64_t has_near(const struct picker *p, int32_t i)
{
    const struct sentence *s = &p->sentence[i];
    uint64_t has = 0;
    if (i > 0 && s[-1].hit == s->hit)
        has |= s[-1].has;
    if (i + 1 < p->n && s[1].hit == s->hit)
        has |= s[1].has;
    return has;
}

/* The weight of a question of many words is that of its heaviest: others belong to the wording. */
static double weigh_question(const struct picker *p)
{
    double top[ASKED_WORDS] = {0}, sum = 0;
    for (int32_t k = 0; k < p->n_word; k++) {
        double weight = p->word[k].weight;
        for (int32_t i = 0; i < ASKED_WORDS; i++)
            if (weight > top[i]) {
                double lighter = top[i];
                top[i] = weight;
                weight = lighter;
            }
    }
    for (int32_t i = 0; i < ASKED_WORDS; i++)
        sum += top[i];
    return sum;
}

/* Whether a sentence has a word that few have, and enough of the question's words. */
static bool is_worth(const struct picker *p, int32_t i)
{
    const struct sentence *s = &p->sentence[i];
    bool rare = false;
    for (int32_t k = 0; k < p->n_word; k++)
        if (s->has >> k & 1)
            rare = rare || p->word[k].n <= pi_max(RARE_SENTENCES, p->n / RARE);
    return rare && weigh(p, s->has | has_near(p, i)) >= COVERED * weigh_question(p);
}

static void score_sentences(struct picker *p)
{
    double meaning = p->wish->meaning, all = weigh_question(p);
    for (int32_t i = 0; i < p->n; i++) {
        struct sentence *s = &p->sentence[i];
        s->own = weigh(p, s->has);
        double words = s->own + NEIGHBOUR_SHARE * weigh(p, has_near(p, i) & ~s->has) * (s->own > 0);
        if (meaning > 0)
            s->score = (all > 0 ? (1 - meaning) * words / all : 0) + meaning * s->hit->score;
        else
            s->score = is_worth(p, i) ? words : 0;
        if (s->twice)
            s->score = 0;
    }
}

/* The sentences of a score above 0, best first; of equal ones those that come first in the text.
   Returns their number. Insertion: few have the words of a question. */
static int32_t sort_sentences(struct picker *p)
{
    int32_t n = 0;
    for (int32_t i = 0; i < p->n; i++) {
        const struct sentence *s = &p->sentence[i];
        int32_t at = n;
        if (s->score <= 0)
            continue;
        for (; at > 0; at--) {
            const struct sentence *o = &p->sentence[p->order[at - 1]];
            if (o->score > s->score || (o->score == s->score && o->hit->first <= s->hit->first))
                break;
            p->order[at] = p->order[at - 1];
        }
        p->order[at] = i;
        n++;
    }
    return n;
}

/* ---- choosing ---- */

static int32_t count_chars(const char *text, size_t len)
{
    int32_t n = 0;
    for (size_t i = 0; i < len; i++)
        n += ((uint8_t)text[i] & 0xc0) != 0x80;
    return n;
}

static int32_t chars_of(const struct sentence *s)
{
    return count_chars(s->hit->text + s->begin, s->end - s->begin) + 1;
}

/* Cuts a sentence to at most `chars` characters around its first and last word of the question. */
static void cut_around(const struct picker *p, struct sentence *s, int32_t chars)
{
    const char *text = s->hit->text;
    size_t first = s->end, last = s->begin, at = s->begin;
    while (at < s->end) { /* word by word, as far as blanks make words */
        size_t stop = at;
        while (stop < s->end && !pi_is_space(text[stop]))
            stop++;
        char *words = stop > at ? text_words(text + at, stop - at) : NULL;
        bool has = false;
        for (size_t i = 0; words != NULL && words[i] != '\0';) {
            size_t len = (size_t)(strchr(words + i, ' ') - (words + i));
            for (int32_t k = 0; k < p->n_word; k++)
                has = has || is_like(p->word[k].text, p->word[k].len, words + i, len);
            i += len + 1;
        }
        pi_mem_free(words);
        if (has) {
            first = pi_min(first, at);
            last = stop;
        }
        at = stop + 1;
    }
    if (first >= last) {
        first = s->begin;
        last = s->begin;
    }
    /* The answer mostly follows the words of the question: two thirds of the room behind. */
    int64_t room = (int64_t)chars - count_chars(text + first, last - first);
    size_t begin = first, end = last;
    for (int64_t n = room / 3; n > 0 && begin > s->begin; n--)
        while (begin > s->begin && ((uint8_t)text[--begin] & 0xc0) == 0x80)
            ;
    room = (int64_t)chars - count_chars(text + begin, last - begin);
    for (; room > 0 && end < s->end; room--)
        for (end++; end < s->end && ((uint8_t)text[end] & 0xc0) == 0x80;)
            end++;
    while (begin > s->begin && begin < first && !pi_is_space(text[begin - 1]))
        begin++;
    while (end < s->end && end > last && !pi_is_space(text[end]))
        end--;
    for (; room < 0 && end > begin; room++) /* the words alone are too much */
        while (end > begin && ((uint8_t)text[--end] & 0xc0) == 0x80)
            ;
    s->begin = begin;
    s->end = end;
}

/* Takes the best sentences as far as there is room; returns what is left of it. */
static int32_t take_best(struct picker *p, int32_t n, int32_t room)
{
    int32_t n_taken = 0;
    for (int32_t i = 0; i < n && n_taken < PARTS_MAX; i++) {
        struct sentence *s = &p->sentence[p->order[i]];
        if (s->score < WORTH * p->sentence[p->order[0]].score)
            break;
        if (chars_of(s) > room && n_taken == 0 && room >= LEAST_CHARS)
            cut_around(p, s, room - 1);
        if (chars_of(s) > room)
            continue;
        s->taken = true;
        room -= chars_of(s);
        n_taken++;
    }
    return room;
}

/* Takes a sentence beside one that was taken, if it is of the same hit and there is room. */
static int32_t take_beside(struct picker *p, const struct sentence *of, int32_t i, int32_t room)
{
    struct sentence *s = &p->sentence[i];
    if (i < 0 || i >= p->n || s->hit != of->hit || s->taken || s->twice)
        return room;
    if (chars_of(s) > room || chars_of(s) > NEIGHBOUR_CHARS)
        return room;
    s->taken = true;
    return room - chars_of(s);
}

static int32_t take_neighbours(struct picker *p, int32_t n, int32_t room)
{
    uint64_t best = 0; /* those that were taken for their own sake, of the first 64 */
    for (int32_t i = 0; i < n && i < 64; i++)
        best |= (uint64_t)p->sentence[p->order[i]].taken << i;
    for (int32_t i = 0; i < n && i < 64; i++) {
        if (!(best >> i & 1))
            continue;
        const struct sentence *s = &p->sentence[p->order[i]];
        room = take_beside(p, s, p->order[i] + 1, room);
        room = take_beside(p, s, p->order[i] - 1, room);
    }
    return room;
}

/* ---- the text ---- */

static int in_text_order(const void *a, const void *b)
{
    const struct sentence *x = *(const struct sentence *const *)a;
    const struct sentence *y = *(const struct sentence *const *)b;
    if (x->hit->first != y->hit->first)
        return x->hit->first < y->hit->first ? -1 : 1;
    if (x->hit != y->hit) /* as long as its hit is alive, the order of hits is one, too */
        return x->hit < y->hit ? -1 : 1;
    return x->index < y->index ? -1 : x->index > y->index;
}

static pith_status write_text(const struct picker *p, char **out, int32_t *n_part, pith_error *err)
{
    size_t size = sizeof(heading) + sizeof(ending), n = sizeof(heading) - 1;
    int32_t n_taken = 0;
    for (int32_t i = 0; i < p->n; i++)
        if (p->sentence[i].taken)
            size += p->sentence[i].end - p->sentence[i].begin + 1;
    const struct sentence **taken =
        pi_mem_alloc_n(PI_MEM_OTHER, (size_t)p->n, sizeof(const struct sentence *));
    char *text = pi_mem_alloc(PI_MEM_OTHER, size);
    if (taken == NULL || text == NULL) {
        pi_mem_free(taken);
        pi_mem_free(text);
        return pi_fail(err, PITH_NOMEM, "no memory for a text of %zu bytes", size);
    }
    for (int32_t i = 0; i < p->n; i++)
        if (p->sentence[i].taken)
            taken[n_taken++] = &p->sentence[i];
    qsort(taken, (size_t)n_taken, sizeof(const struct sentence *), in_text_order);
    memcpy(text, heading, n);
    for (int32_t i = 0; i < n_taken; i++) {
        const struct sentence *s = taken[i];
        bool follows = i > 0 && taken[i - 1]->hit == s->hit && taken[i - 1]->index + 1 == s->index;
        if (i > 0)
            text[n++] = follows ? ' ' : '\n';
        *n_part += !follows;
        memcpy(text + n, s->hit->text + s->begin, s->end - s->begin);
        n += s->end - s->begin;
    }
    memcpy(text + n, ending, sizeof(ending));
    pi_mem_free(taken);
    *out = text;
    return PITH_OK;
}

static pith_status pick(struct picker *p, const struct text_hits *hits, char **text,
                        int32_t *n_part, pith_error *err)
{
    int32_t room = p->wish->chars - (int32_t)(sizeof(heading) + sizeof(ending) - 2);
    p->words = text_words(p->wish->question, p->wish->len);
    if (p->words == NULL)
        return pi_fail(err, PITH_NOMEM, "no memory for the words of a question");
    read_words(p);
    PI_TRY(read_sentences(p, hits, err));
    if (p->n == 0 || room < LEAST_CHARS)
        return PITH_OK;
    p->order = pi_mem_alloc_n(PI_MEM_OTHER, (size_t)p->n, sizeof(*p->order));
    if (p->order == NULL)
        return pi_fail(err, PITH_NOMEM, "no memory for %d sentences", p->n);
    mark_doubles(p);
    weigh_words(p);
    score_sentences(p);
    int32_t n = sort_sentences(p), left = take_best(p, n, room);
    if (left == room) /* nothing is taken */
        return PITH_OK;
    take_neighbours(p, n, left);
    return write_text(p, text, n_part, err);
}

pith_status text_snippets(const struct text_hits *hits, const struct text_wish *wish, char **text,
                          int32_t *n_part, pith_error *err)
{
    struct picker p = {.wish = wish};
    *text = NULL;
    *n_part = 0;
    pith_status status = pick(&p, hits, text, n_part, err);
    pi_mem_free(p.words);
    pi_mem_free(p.sentence);
    pi_mem_free(p.order);
    return status;
}
