/*
 * question.c - the question of a message, and where it begins in the tokens that the message
 * became. It knows texts and tokens, and nothing of what is done with the place.
 *
 * Invariant: a place is between two tokens of the prompt, so whatever is put there, the tokens on
 * both sides are those of the prompt.
 */
#include "engine/question.h"

#include "base/mem.h"

/* How far the beginning of a line may lie before the question; a text without lines has none. */
#define LINE_MAX_BYTES 256

/* What asks in a message without a label (mlx-swift's client of longctx-svc). */
#define TAIL_BYTES 512

static const char label[] = "question:";
#define LABEL_LEN (sizeof(label) - 1)

/* ASCII alone: no byte of a longer character is one of these. */
static bool is_space(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

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

void pith_recall_question(const char *message, size_t len, const char **out, size_t *out_len)
{
    size_t begin = len > TAIL_BYTES ? len - TAIL_BYTES : 0;
    while (begin > 0 && begin < len && ((unsigned char)message[begin] & 0xc0) == 0x80)
        begin++; /* the rest of a character */
    for (size_t at = len; at >= LABEL_LEN; at--)
        if (is_label(message + at - LABEL_LEN)) {
            begin = at;
            break;
        }
    *out = message + begin;
    *out_len = len - begin;
}

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
    while (end > least && is_space(text[end - 1]))
        end--;
    if (end - least < LABEL_LEN || !is_label(text + end - LABEL_LEN))
        return at;
    return end - LABEL_LEN;
}

/* Back to the beginning of the line, or where that is far, of the word. */
static size_t before_line(const char *text, size_t least, size_t at)
{
    size_t line = at, word = at;
    while (line > least && text[line - 1] != '\n' && at - line <= LINE_MAX_BYTES)
        line--;
    if (at - line <= LINE_MAX_BYTES)
        return line;
    while (word > least && !is_space(text[word - 1]) && at - word < LINE_MAX_BYTES)
        word--;
    return word;
}

size_t pi_question_place(const char *text, size_t len, const char *message, size_t message_len,
                         struct pi_question *out)
{
    *out = (struct pi_question){0};
    pith_recall_question(message, message_len, &out->text, &out->len);
    while (out->len > 0 && is_space(out->text[out->len - 1]))
        out->len--;
    while (out->len > 0 && is_space(out->text[0])) {
        out->text++;
        out->len--;
    }
    if (out->len == 0)
        return 0;
    size_t at = find_last(text, len, out->text, out->len);
    if (at == len)
        return 0;
    /* Templates drop white space around a message: it begins no farther back than this. */
    size_t before = (size_t)(out->text - message);
    size_t least = at > before ? at - before : 0;
    return before_line(text, least, before_label(text, least, at));
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

pith_status pi_question_find(const pith_model *model, const int32_t *ids, int32_t n_id,
                             const char *message, size_t message_len, struct pi_question *out,
                             pith_error *err)
{
    size_t cap = 8 * (size_t)n_id + 64, len = 0;
    struct pi_question found = {0};
    char *text = pi_mem_alloc(PI_MEM_OTHER, cap);
    size_t *start = pi_mem_alloc_n(PI_MEM_OTHER, (size_t)n_id, sizeof(*start)); /* [n_id] */
    pith_status status = PITH_OK;
    if (text == NULL || start == NULL)
        status = pi_fail(err, PITH_NOMEM, "no memory for the text of %d tokens", n_id);
    for (int32_t i = 0; i < n_id && status == PITH_OK; i++) {
        start[i] = len;
        status = add_token(model, ids[i], &text, &cap, &len, err);
    }
    if (status == PITH_OK) {
        size_t place = pi_question_place(text, len, message, message_len, &found);
        while (found.at < n_id - 1 && start[found.at + 1] <= place)
            found.at++;
        if (place == 0) /* there is none; tokens without bytes come before it all the same */
            found.at = 0;
        *out = found;
    }
    pi_mem_free(start);
    pi_mem_free(text);
    return status;
}
