/*
 * question.c - the question of a message, and where it begins in the tokens that the message
 * became. It knows texts and tokens, and does nothing with the place itself.
 *
 * Invariant: a place is between two tokens of the prompt, so for any inserted text, the tokens on
 * both sides are the prompt's.
 */
#include "engine/question.h"

#include "base/mem.h"
#include "base/utf8.h"
#include "policy/recall/text_sentences.h"
#include "pith/policy.h"

/* How far the beginning of a line may lie before a label. */
#define LINE_MAX_BYTES 256

/* A message of no more is a question as it stands. */
#define SHORT_BYTES 256

/* Bytes at each end of a longer message that are searched for sentences that ask. */
#define TAIL_BYTES 512

/* A label counts that has no more behind it: what is longer holds a text, too. */
#define LABEL_TAIL_BYTES 1024

/* Sentences side by side that make one question, and those that are looked at in a tail. */
#define SENTENCES_MAX 4
#define TAIL_SENTENCES 64

static const char label[] = "question:";
#define LABEL_LEN (sizeof(label) - 1)

static char lower(char c)
{
    return c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c;
}

static bool is_label(const char *text)
{
    size_t i = 0;
    while (i < LABEL_LEN && lower(text[i]) == label[i])
        i++;
    return i == LABEL_LEN;
}

/* ---- the question ---- */

/* How a question was found. */
enum source {
    SOURCE_LABEL, /* behind "question:" */
    SOURCE_SHORT, /* the whole message */
    SOURCE_TAIL,  /* the last sentences that ask, and what follows them */
    SOURCE_HEAD,  /* the first, where none at the end does */
    SOURCE_LAST,  /* the last sentence */
};

struct found {
    enum source source;
    size_t begin;
    size_t end;
    bool asks; /* a label or a question mark says so */
};

/* The length without white space at the end. */
static size_t trim(const char *text, size_t len)
{
    while (len > 0 && pi_is_space(text[len - 1]))
        len--;
    return len;
}

static bool find_label(const char *message, size_t len, struct found *out)
{
    for (size_t at = len; at >= LABEL_LEN && len - at <= LABEL_TAIL_BYTES; at--)
        if (is_label(message + at - LABEL_LEN)) {
            *out = (struct found){SOURCE_LABEL, at, len, true};
            return true;
        }
    return false;
}

static bool is_request(const struct text_sentence *s)
{
    return s->asks || s->demands;
}

/* The beginning of the last TAIL_BYTES: of a line where one begins just before, else of a word. */
static size_t tail_begin(const char *message, size_t len)
{
    size_t begin = len > TAIL_BYTES ? len - TAIL_BYTES : 0, line = begin;
    while (line > 0 && message[line - 1] != '\n' && begin - line < LINE_MAX_BYTES)
        line--;
    if (line == 0 || message[line - 1] == '\n')
        return line;
    while (begin < len && !pi_is_space(message[begin - 1]) &&
           ((unsigned char)message[begin - 1] & 0x80) == 0)
        begin++;
    while (begin < len && ((unsigned char)message[begin] & 0xc0) == 0x80)
        begin++;
    return begin;
}

/* The last sentences of the message, at most TAIL_SENTENCES; returns their number. */
static int32_t read_tail(const char *message, size_t len, struct text_sentence *out)
{
    int32_t n = 0;
    for (size_t at = tail_begin(message, len); text_sentence_next(message, len, &at, &out[n]);)
        if (n + 1 < TAIL_SENTENCES)
            n++;
        else
            memmove(out, out + 1, (size_t)n * sizeof(*out));
    return n;
}

/* Whether a blank line lies between two sentences. */
static bool are_apart(const char *message, const struct text_sentence *a,
                      const struct text_sentence *b)
{
    int32_t n_line = 0;
    for (size_t at = a->end; at < b->begin; at++)
        n_line += message[at] == '\n';
    return n_line > 1;
}

/* The last run of sentences that ask for something. */
static bool find_tail(const char *message, size_t len, struct found *out)
{
    struct text_sentence tail[TAIL_SENTENCES];
    int32_t last = read_tail(message, len, tail) - 1, first;
    while (last >= 0 && !is_request(&tail[last]))
        last--;
    if (last < 0)
        return false;
    bool asks = tail[last].asks;
    for (first = last; first > 0 && last - first + 1 < SENTENCES_MAX; first--) {
        if (!is_request(&tail[first - 1]) || are_apart(message, &tail[first - 1], &tail[first]))
            break;
        asks = asks || tail[first - 1].asks;
    }
    *out = (struct found){SOURCE_TAIL, text_question_begin(message, &tail[first]), len, asks};
    return true;
}

static bool find_head(const char *message, size_t len, struct found *out)
{
    struct text_sentence s;
    size_t at = 0, begin = len, end = 0;
    bool asks = false;
    for (int32_t i = 0; i < SENTENCES_MAX && at < TAIL_BYTES; i++) {
        if (!text_sentence_next(message, len, &at, &s) || (end > 0 && !is_request(&s)))
            break;
        if (!is_request(&s))
            continue;
        begin = pi_min(begin, s.begin);
        end = s.end;
        asks = asks || s.asks;
    }
    *out = (struct found){SOURCE_HEAD, begin, end, asks};
    return end > 0;
}

static struct found find_last_sentence(const char *message, size_t len)
{
    struct text_sentence tail[TAIL_SENTENCES];
    int32_t n = read_tail(message, len, tail);
    size_t begin = n > 0 ? text_question_begin(message, &tail[n - 1]) : len;
    return (struct found){SOURCE_LAST, begin, len, false};
}

/* Without white space around it. */
static struct found find_question(const char *message, size_t len)
{
    len = trim(message, len);
    struct found f = {SOURCE_SHORT, 0, len, false};
    if (!find_label(message, len, &f) && len > SHORT_BYTES && !find_tail(message, len, &f) &&
        !find_head(message, len, &f))
        f = find_last_sentence(message, len);
    f.end = pi_min(f.end, len);
    while (f.begin < f.end && pi_is_space(message[f.begin]))
        f.begin++;
    return f;
}

void pith_recall_question(const char *message, size_t len, const char **out, size_t *out_len)
{
    struct found f = find_question(message, len);
    *out = message + f.begin;
    *out_len = f.end - f.begin;
}

/* ---- its place ---- */

/* The beginning of the last occurrence of part [part_len] in text; len: there is none. */
static size_t find_last(const char *text, size_t len, const char *part, size_t part_len)
{
    if (part_len > len)
        return len;
    for (size_t at = len - part_len + 1; at-- > 0;)
        if (memcmp(text + at, part, part_len) == 0)
            return at;
    return len;
}

/* Back over a label that ends before `at`, spaces between included; `at` where there is none. */
static size_t before_label(const char *text, size_t least, size_t at)
{
    size_t end = at;
    while (end > least && pi_is_space(text[end - 1]))
        end--;
    if (end - least < LABEL_LEN || !is_label(text + end - LABEL_LEN))
        return at;
    return end - LABEL_LEN;
}

/* Back to the beginning of the line, where that is near. */
static size_t before_line(const char *text, size_t least, size_t at)
{
    size_t line = at;
    while (line > least && text[line - 1] != '\n' && at - line <= LINE_MAX_BYTES)
        line--;
    return at - line <= LINE_MAX_BYTES ? line : at;
}

/* Whether nothing but white space follows: no template says that this was a user's message. */
static bool is_bare(const char *text, size_t len, size_t at)
{
    while (at < len && pi_is_space(text[at]))
        at++;
    return at == len;
}

/* The place for a question of a message that begins at `begin` in text, and the question at
   `at`. It is before its label's line, or behind the message, which ends at `end`. */
static size_t place_of(const struct found *f, const char *text, size_t least, size_t at, size_t end)
{
    if (f->source == SOURCE_HEAD)
        return end;
    return f->source == SOURCE_LABEL ? before_line(text, least, before_label(text, least, at)) : at;
}

size_t pith_recall_place(const char *message, size_t len)
{
    struct found f = find_question(message, len);
    return place_of(&f, message, 0, f.begin, trim(message, len));
}

size_t pi_question_place(const char *text, size_t len, const char *message, size_t message_len,
                         struct pi_question *out)
{
    struct found f = find_question(message, message_len);
    *out = (struct pi_question){0, message + f.begin, f.end - f.begin};
    if (out->len == 0)
        return 0;
    size_t rest = trim(message, message_len) - f.begin; /* stands last in the text, too */
    size_t at = find_last(text, len, message + f.begin, rest);
    if (at == len)
        return 0;
    if (is_bare(text, len, at + rest) && (!f.asks || f.source == SOURCE_HEAD))
        return 0;
    /* Templates drop white space around a message: it begins no farther back than this. */
    return place_of(&f, text, at > f.begin ? at - f.begin : 0, at, at + rest);
}

/* The bytes of one token behind *len of *text, which grows. */
static pith_status add_token(const pith_model *model, int32_t id, char **text, size_t *cap,
                             size_t *len, pith_error *err)
{
    size_t n;
    pith_status status = pith_token_bytes(model, id, true, *text + *len, *cap - *len, &n);
    if (status == PITH_RANGE) {
        size_t wanted = 2 * (*len + n);
        char *grown = pi_mem_grow(PI_MEM_OTHER, *text, wanted, 1);
        if (grown == NULL)
            return pi_fail(err, PITH_NOMEM, "no memory for the text of a prompt, %zu bytes",
                           wanted);
        *text = grown;
        *cap = wanted;
        status = pith_token_bytes(model, id, true, *text + *len, *cap - *len, &n);
    }
    if (status != PITH_OK)
        return pi_fail(err, status, "token %d: %s", id, pith_status_text(status));
    *len += n;
    return PITH_OK;
}

/* The text of a prompt's tokens, and where each begins. */
struct prompt {
    char *text; /* [len] owned */
    size_t len;
    size_t *start; /* [n_id] owned */
    int32_t n_id;
};

static void free_prompt(struct prompt *p)
{
    pi_mem_free(p->text);
    pi_mem_free(p->start);
}

static pith_status read_prompt(const pith_model *model, const int32_t *ids, int32_t n_id,
                               struct prompt *out, pith_error *err)
{
    size_t cap = 8 * (size_t)n_id + 64;
    struct prompt p = {.n_id = n_id};
    p.text = pi_mem_alloc(PI_MEM_OTHER, cap);
    p.start = pi_mem_alloc_n(PI_MEM_OTHER, (size_t)n_id, sizeof(*p.start));
    pith_status status = PITH_OK;
    if (p.text == NULL || p.start == NULL)
        status = pi_fail(err, PITH_NOMEM, "no memory for the text of %d tokens", n_id);
    for (int32_t i = 0; i < n_id && status == PITH_OK; i++) {
        p.start[i] = p.len;
        status = add_token(model, ids[i], &p.text, &cap, &p.len, err);
    }
    if (status != PITH_OK)
        free_prompt(&p);
    else
        *out = p;
    return status;
}

/* The token that begins at a place, or that it lies in. At place 0 it is token 0: tokens without
   bytes come before it all the same. */
static int32_t token_at(const struct prompt *p, size_t place)
{
    int32_t at = 0;
    while (place > 0 && at < p->n_id - 1 && p->start[at + 1] <= place)
        at++;
    return at;
}

pith_status pi_question_find(const pith_model *model, const int32_t *ids, int32_t n_id,
                             const char *message, size_t message_len, struct pi_question *out,
                             pith_error *err)
{
    struct prompt p;
    PI_TRY(read_prompt(model, ids, n_id, &p, err));
    size_t place = pi_question_place(p.text, p.len, message, message_len, out);
    out->at = token_at(&p, place);
    free_prompt(&p);
    return PITH_OK;
}

pith_status pi_prompt_find(const pith_model *model, const int32_t *ids, int32_t n_id,
                           const char *part, int32_t *at, pith_error *err)
{
    struct prompt p;
    PI_TRY(read_prompt(model, ids, n_id, &p, err));
    size_t place = find_last(p.text, p.len, part, strlen(part));
    *at = place < p.len ? token_at(&p, place) : 0;
    free_prompt(&p);
    return PITH_OK;
}
