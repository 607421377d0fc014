/*
 * vocab.c - the operations of a vocabulary: text to ids, ids to bytes, and the kinds of tokens.
 * Nothing here changes the vocabulary, so any number of threads may use one; the state of a call
 * lives in its session.
 */
#include "base/utf8.h"
#include "text/vocab/vocab_internal.h"

int32_t pi_vocab_size(const struct pi_vocab *v)
{
    return v->n_id;
}

const char *pi_vocab_kind(const struct pi_vocab *v)
{
    return v->kind;
}

int32_t pi_vocab_bos(const struct pi_vocab *v)
{
    return v->bos;
}

int32_t pi_vocab_eos(const struct pi_vocab *v)
{
    return v->eos;
}

bool pi_vocab_is_end(const struct pi_vocab *v, int32_t id)
{
    return v->attr != NULL && id >= 0 && id < v->n_id && (v->attr[id] & PI_TOKEN_END) != 0;
}

bool pi_vocab_gap_tokens(const struct pi_vocab *v, pith_gap_tokens *out)
{
    *out = v->gap;
    return out->prefix >= 0 && out->suffix >= 0 && out->middle >= 0;
}

/* ---- another vocabulary ---- */

#define IDS_BEYOND 256 /* of one file more than of the other: padding of the embedding */

static bool is_same(const struct pi_vocab *a, const struct pi_vocab *b, int32_t id)
{
    const struct pi_token *x = &a->token[id], *y = &b->token[id];
    const uint8_t alike = (uint8_t)~PI_TOKEN_END; /* a base model ends texts by another */
    return x->piece_len == y->piece_len && (a->attr[id] & alike) == (b->attr[id] & alike) &&
           memcmp(a->text + x->piece, b->text + y->piece, x->piece_len) == 0;
}

pith_status pi_vocab_check_same(const struct pi_vocab *a, const struct pi_vocab *b, pith_error *err)
{
    int32_t n = (int32_t)pi_min(a->n_id, b->n_id);
    if (strcmp(a->kind, b->kind) != 0)
        return pi_fail(err, PITH_INVALID,
                       "draft: the models' tokenizers differ: \"%.40s\" and \"%.40s\"", a->kind,
                       b->kind);
    if (pi_max(a->n_id, b->n_id) - n > IDS_BEYOND)
        return pi_fail(err, PITH_INVALID,
                       "draft: the models' vocabularies differ: %d tokens and %d", a->n_id,
                       b->n_id);
    if (a->bos != b->bos)
        return pi_fail(err, PITH_INVALID,
                       "draft: the models' vocabularies differ: texts begin with token %d and %d",
                       a->bos, b->bos);
    n = (int32_t)pi_min(n, pi_min(a->n_token, b->n_token));
    for (int32_t i = 0; a->type != PI_VOCAB_NONE && i < n; i++)
        if (!is_same(a, b, i))
            return pi_fail(err, PITH_INVALID,
                           "draft: the models' vocabularies differ: token %d is another", i);
    return PITH_OK;
}

/* ---- text to ids ---- */

/* Words and special tokens count in 32 bits; a text of this size is far beyond any context. */
#define TEXT_MAX ((size_t)1 << 30)

/* Tokenizes what lies between two special tokens. */
static pith_status plain_text(struct pi_session *s, const char *text, size_t len,
                              bool after_special, pith_error *err)
{
    if (len == 0)
        return PITH_OK;
    return s->vocab->type == PI_VOCAB_BPE ? pi_bpe_text(s, text, len, err)
                                          : pi_spm_text(s, text, len, after_special, err);
}

/* The special token at text[at], or -1. A control token must lie in what no mark says a user wrote;
   user-defined tokens are text, and read anywhere. *plain: where that ends, kept between calls. */
static int32_t special_here(const struct pi_vocab *v, const char *text, size_t len, size_t at,
                            const uint8_t *marks, bool all, size_t *plain)
{
    if (marks == NULL || !all)
        return pi_special_at(v, text + at, len - at, all);
    if (*plain <= at) {
        *plain = at;
        while (*plain < len && marks[*plain] == 0)
            ++*plain;
    }
    int32_t any = pi_special_at(v, text + at, *plain - at, true);
    int32_t user = pi_special_at(v, text + at, len - at, false);
    if (any < 0 || (user >= 0 && v->token[user].piece_len > v->token[any].piece_len))
        return user;
    return any;
}

/* Cuts text at special tokens: user-defined ones always, the others when all. */
static pith_status whole_text(struct pi_session *s, const char *text, size_t len,
                              const uint8_t *marks, bool all, pith_error *err)
{
    const struct pi_vocab *v = s->vocab;
    uint8_t starts = all ? PI_STARTS_USER | PI_STARTS_CONTROL : PI_STARTS_USER;
    size_t plain = 0;
    bool after_special = true; /* the start of a text is like the end of a token */
    size_t done = 0, at = 0;
    while (at < len) {
        int32_t id = (v->starts[(uint8_t)text[at]] & starts) != 0
                         ? special_here(v, text, len, at, marks, all, &plain)
                         : -1;
        if (id < 0) {
            at++;
            continue;
        }
        PI_TRY(plain_text(s, text + done, at - done, after_special, err));
        pi_session_emit(s, id);
        after_special = true;
        at += v->token[id].piece_len;
        while ((v->attr[id] & PI_TOKEN_RSTRIP) != 0 && at < len && pi_is_space(text[at]))
            at++;
        done = at;
    }
    return plain_text(s, text + done, len - done, after_special, err);
}

/* One is enough. */
static bool begins_with_bos(const struct pi_vocab *v, const char *text, size_t len,
                            const uint8_t *marks, bool all)
{
    size_t plain = 0;
    return all && len > 0 && special_here(v, text, len, 0, marks, all, &plain) == v->bos;
}

bool pi_vocab_adds_bos(const struct pi_vocab *v)
{
    return v->type != PI_VOCAB_NONE && v->add_bos && v->bos >= 0;
}

pith_status pi_vocab_tokenize(const struct pi_vocab *v, const char *text, size_t text_len,
                              uint32_t flags, int32_t *out, int32_t cap, int32_t *n_id,
                              pith_error *err)
{
    return pi_vocab_tokenize_marked(v, text, text_len, NULL, flags, out, cap, n_id, err);
}

pith_status pi_vocab_tokenize_marked(const struct pi_vocab *v, const char *text, size_t text_len,
                                     const uint8_t *marks, uint32_t flags, int32_t *out,
                                     int32_t cap, int32_t *n_id, pith_error *err)
{
    if (v->type == PI_VOCAB_NONE)
        return pi_fail(err, PITH_UNSUPPORTED, "the model has no tokenizer");
    if ((text == NULL && text_len > 0) || cap < 0 || (out == NULL && cap > 0) || n_id == NULL)
        return pi_fail(err, PITH_INVALID, "tokenize: NULL where bytes or ids are, or cap %d", cap);
    if (text_len > TEXT_MAX)
        return pi_fail(err, PITH_INVALID, "text_len: %zu is above the limit of %zu bytes", text_len,
                       TEXT_MAX);
    struct pi_session s = {.out = out, .cap = cap};
    pith_status status = pi_session_begin(&s, v, text_len, err);
    bool all = (flags & PITH_TOKENIZE_SPECIAL) != 0;
    if ((flags & PITH_TOKENIZE_BOS) != 0 && v->add_bos && v->bos >= 0 &&
        !begins_with_bos(v, text, text_len, marks, all))
        pi_session_emit(&s, v->bos);
    if (status == PITH_OK)
        status = whole_text(&s, text, text_len, marks, all, err);
    if ((flags & PITH_TOKENIZE_BOS) != 0 && v->add_eos && v->eos >= 0)
        pi_session_emit(&s, v->eos);
    pi_session_end(&s);
    if (status != PITH_OK)
        return status;
    *n_id = (int32_t)s.n_out;
    if (s.n_out > cap)
        return pi_fail(err, PITH_RANGE, "cap: %d ids do not hold the text's %lld", cap,
                       (long long)s.n_out);
    return PITH_OK;
}

/* ---- ids to bytes ---- */

static struct pi_str piece_of(const struct pi_vocab *v, int32_t id, bool special)
{
    const struct pi_token *token = &v->token[id];
    bool control = (v->attr[id] & (PI_TOKEN_CONTROL | PI_TOKEN_UNKNOWN)) != 0;
    bool hidden = control && (v->attr[id] & PI_TOKEN_SHOWN) == 0 && !special;
    return (struct pi_str){v->text + token->piece, hidden ? 0 : token->piece_len};
}

pith_status pi_vocab_token_bytes(const struct pi_vocab *v, int32_t id, bool special, char *out,
                                 size_t cap, size_t *len)
{
    if (id < 0 || id >= v->n_id || len == NULL)
        return PITH_INVALID;
    struct pi_str piece = {"", 0};
    if (v->type != PI_VOCAB_NONE)
        piece = piece_of(v, id, special);
    *len = piece.len;
    if (piece.len > cap)
        return PITH_RANGE;
    if (piece.len > 0)
        memcpy(out, piece.data, piece.len);
    return PITH_OK;
}

pith_status pi_vocab_detokenize(const struct pi_vocab *v, const int32_t *ids, int32_t n_id,
                                bool special, char *out, size_t cap, size_t *len, pith_error *err)
{
    if (v->type == PI_VOCAB_NONE)
        return pi_fail(err, PITH_UNSUPPORTED, "the model has no tokenizer");
    if (n_id < 0 || (ids == NULL && n_id > 0) || len == NULL)
        return pi_fail(err, PITH_INVALID, "detokenize: NULL where ids are, or n_id %d", n_id);
    bool drop_space = v->type == PI_VOCAB_SPM && v->add_space_prefix;
    size_t n = 0;
    for (int32_t i = 0; i < n_id; i++) {
        if (ids[i] < 0 || ids[i] >= v->n_id)
            return pi_fail(err, PITH_INVALID, "ids[%d]: %d is no token; there are %d", i, ids[i],
                           v->n_id);
        struct pi_str piece = piece_of(v, ids[i], special);
        if ((v->attr[ids[i]] & (PI_TOKEN_CONTROL | PI_TOKEN_UNKNOWN)) == 0) {
            if (drop_space && piece.len > 0 && piece.data[0] == ' ') {
                piece.data++;
                piece.len--;
            }
            drop_space = false;
        }
        if (n <= cap && piece.len <= cap - n && piece.len > 0)
            memcpy(out + n, piece.data, piece.len);
        n += piece.len;
    }
    *len = n;
    if (n > cap)
        return pi_fail(err, PITH_RANGE, "cap: %zu bytes do not hold the text's %zu", cap, n);
    return PITH_OK;
}
