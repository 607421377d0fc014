/*
 * vocab_maker.h - small vocabularies put together byte by byte: byte-level BPE from a list of
 * merges, SentencePiece from a list of pieces, each with special tokens. Always there, unlike the
 * real ones of the shared data.
 */
#ifndef VOCAB_MAKER_H
#define VOCAB_MAKER_H

#include "gguf_bytes.h"
#include "text/vocab/vocab.h"

enum { T_U32 = 4, T_I32 = 5, T_F32 = 6, T_BOOL = 7, T_STRING = 8, T_ARRAY = 9 };
enum { NORMAL = 1, UNKNOWN = 2, CONTROL = 3, USER = 4, BYTE = 6 };

#define MADE_MAX 400

struct made_token {
    char text[48];
    int32_t type;
    float score;
};

/* The contents of a file; tests may change it before vocab_write. */
struct made_vocab {
    const char *model; /* "gpt2", "llama" */
    const char *pre;   /* NULL: absent */
    struct made_token token[MADE_MAX];
    int32_t n_token;
    const char *const *merge;                   /* NULL-terminated; NULL: none */
    int32_t bos, eos;                           /* -1: absent */
    int32_t add_bos, add_eos, add_space_prefix; /* -1: absent */
    const char *name;                           /* general.name; NULL: absent */
    struct {
        const char *name; /* "unknown", "fim_pre"...; NULL: none */
        uint32_t value;
    } id[4]; /* other tokens that the file names */
};

static inline int32_t made_find(const struct made_vocab *m, const char *text)
{
    for (int32_t i = 0; i < m->n_token; i++) {
        if (strcmp(m->token[i].text, text) == 0)
            return i;
    }
    return -1;
}

static inline int32_t made_add(struct made_vocab *m, const char *text, int32_t type, float score)
{
    assert_true(m->n_token < MADE_MAX);
    struct made_token *token = &m->token[m->n_token];
    assert_true((size_t)snprintf(token->text, sizeof(token->text), "%s", text) <
                sizeof(token->text));
    token->type = type;
    token->score = score;
    return m->n_token++;
}

/* Writes a code point below U+0800. */
static inline void made_char(uint32_t c, char *out)
{
    if (c < 0x80) {
        out[0] = (char)c;
        out[1] = 0;
    } else {
        out[0] = (char)(0xc0 | c >> 6);
        out[1] = (char)(0x80 | (c & 0x3f));
        out[2] = 0;
    }
}

/* The character that stands for a byte in GPT-2's alphabet, as its encoder.py makes the table. */
static inline void made_byte_char(int byte, char *out)
{
    uint32_t next = 256;
    for (int b = 0; b < 256; b++) {
        int printed = (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
        uint32_t c = printed ? (uint32_t)b : next++;
        if (b == byte)
            made_char(c, out);
    }
}

static const char *const made_merges[] = {"h e",
                                          "l l",
                                          "he ll",
                                          "hell o",
                                          "\xc4\xa0 w",
                                          "o r",
                                          "or l",
                                          "\xc4\xa0w orl",
                                          "\xc4\xa0worl d",
                                          "a a",
                                          "aa aa",
                                          "a b",
                                          "b a",
                                          "ab ab",
                                          "aa b",
                                          "\xc4\xa0 \xc4\xa0",
                                          "\xc3\xa5 \xc2\xbd",
                                          "1 2",
                                          "12 3",
                                          NULL};

/* 256 bytes, the results of the merges, then special tokens. */
static inline void made_bpe(struct made_vocab *m, const char *pre)
{
    memset(m, 0, sizeof(*m));
    m->model = "gpt2";
    m->pre = pre;
    m->merge = made_merges;
    m->add_bos = m->add_eos = m->add_space_prefix = -1;
    for (int byte = 0; byte < 256; byte++) {
        char text[8];
        made_byte_char(byte, text);
        made_add(m, text, NORMAL, 0);
    }
    for (int i = 0; made_merges[i] != NULL; i++) {
        char text[48];
        const char *space = strchr(made_merges[i], ' ');
        snprintf(text, sizeof(text), "%.*s%s", (int)(space - made_merges[i]), made_merges[i],
                 space + 1);
        made_add(m, text, NORMAL, 0);
    }
    m->bos = made_add(m, "<|begin|>", CONTROL, 0);
    m->eos = made_add(m, "<|stop|>", CONTROL, 0);
    made_add(m, "<|im_end|>", NORMAL, 0);
    made_add(m, "<|im_end|><|im_end|>", CONTROL, 0);
    made_add(m, "<user tag>", USER, 0);
    made_add(m, "<user", USER, 0);
    made_add(m, "<|fim_prefix|>", USER, 0);
}

static const char *const made_pieces[] = {"\xe2\x96\x81",
                                          "a",
                                          "b",
                                          "h",
                                          "e",
                                          "l",
                                          "o",
                                          "w",
                                          "r",
                                          "d",
                                          "he",
                                          "ll",
                                          "hell",
                                          "hello",
                                          "\xe2\x96\x81hello",
                                          "\xe2\x96\x81w",
                                          "or",
                                          "ld",
                                          "orld",
                                          "\xe2\x96\x81world",
                                          "aa",
                                          "ab",
                                          "aab",
                                          "aaaa",
                                          "\xe2\x96\x81\xe2\x96\x81",
                                          "\xe2\x96\x81"
                                          "a",
                                          "\xe4\xbd\xa0",
                                          "ba",
                                          "\xc3\xa9",
                                          NULL};

/* <unk> <s> </s>, 256 bytes, pieces with scores, special tokens. */
static inline void made_spm(struct made_vocab *m)
{
    memset(m, 0, sizeof(*m));
    m->model = "llama";
    m->bos = m->eos = m->add_bos = m->add_eos = m->add_space_prefix = -1;
    made_add(m, "<unk>", UNKNOWN, 0);
    made_add(m, "<s>", CONTROL, 0);
    made_add(m, "</s>", CONTROL, 0);
    for (int byte = 0; byte < 256; byte++) {
        char text[8];
        snprintf(text, sizeof(text), "<0x%02X>", byte);
        made_add(m, text, BYTE, 0);
    }
    /* Scores as trained ones look: not in the order of ids, and some are equal. */
    for (int i = 0; made_pieces[i] != NULL; i++)
        made_add(m, made_pieces[i], NORMAL, -(float)(i * 7 % 23));
    made_add(m, "<|user|>", USER, 0);
    made_add(m, "<|end|>", CONTROL, 0);
}

/* ---- writing ---- */

static inline void made_count(struct bytes *b)
{
    b->data[16]++; /* n_kv, far below 256 */
}

static inline void made_string(struct bytes *b, const char *key, const char *value)
{
    made_count(b);
    put_key(b, key, T_STRING);
    put_text(b, value);
}

static inline void made_u32(struct bytes *b, const char *key, uint32_t value)
{
    made_count(b);
    put_key(b, key, T_U32);
    put_u32(b, value);
}

static inline void made_flag(struct bytes *b, const char *key, int32_t value)
{
    if (value < 0)
        return;
    made_count(b);
    put_key(b, key, T_BOOL);
    put_int(b, (uint64_t)value, 1);
}

static inline void made_array(struct bytes *b, const char *key, uint32_t type, uint64_t n)
{
    made_count(b);
    put_key(b, key, T_ARRAY);
    put_u32(b, type);
    put_u64(b, n);
}

static inline void vocab_write(const struct made_vocab *m, struct bytes *b)
{
    put_header(b, 3, 0, 0);
    made_string(b, "general.architecture", "llama");
    if (m->name != NULL)
        made_string(b, "general.name", m->name);
    made_string(b, "tokenizer.ggml.model", m->model);
    if (m->pre != NULL)
        made_string(b, "tokenizer.ggml.pre", m->pre);
    made_array(b, "tokenizer.ggml.tokens", T_STRING, (uint64_t)m->n_token);
    for (int32_t i = 0; i < m->n_token; i++)
        put_text(b, m->token[i].text);
    made_array(b, "tokenizer.ggml.token_type", T_I32, (uint64_t)m->n_token);
    for (int32_t i = 0; i < m->n_token; i++)
        put_u32(b, (uint32_t)m->token[i].type);
    if (strcmp(m->model, "llama") == 0) {
        made_array(b, "tokenizer.ggml.scores", T_F32, (uint64_t)m->n_token);
        for (int32_t i = 0; i < m->n_token; i++)
            put_raw(b, &m->token[i].score, 4);
    }
    if (m->merge != NULL) {
        uint64_t n = 0;
        while (m->merge[n] != NULL)
            n++;
        made_array(b, "tokenizer.ggml.merges", T_STRING, n);
        for (uint64_t i = 0; i < n; i++)
            put_text(b, m->merge[i]);
    }
    if (m->bos >= 0)
        made_u32(b, "tokenizer.ggml.bos_token_id", (uint32_t)m->bos);
    if (m->eos >= 0)
        made_u32(b, "tokenizer.ggml.eos_token_id", (uint32_t)m->eos);
    for (int i = 0; i < 4 && m->id[i].name != NULL; i++) {
        char key[64];
        snprintf(key, sizeof(key), "tokenizer.ggml.%s_token_id", m->id[i].name);
        made_u32(b, key, m->id[i].value);
    }
    made_flag(b, "tokenizer.ggml.add_bos_token", m->add_bos);
    made_flag(b, "tokenizer.ggml.add_eos_token", m->add_eos);
    made_flag(b, "tokenizer.ggml.add_space_prefix", m->add_space_prefix);
}

/* Loads a written file; the caller frees. */
static inline struct pi_vocab *vocab_open(const struct bytes *b)
{
    struct pi_gguf g;
    struct pi_vocab *vocab = NULL;
    err = (pith_error){0};
    if (pi_gguf_parse(&g, b->data, b->len, "made", &err) != PITH_OK ||
        pi_vocab_load(&g, 0, &vocab, &err) != PITH_OK)
        fail_msg("%s", err.message);
    pi_gguf_free(&g); /* the vocabulary must not need the file any more */
    return vocab;
}

static inline struct pi_vocab *vocab_made(const struct made_vocab *m)
{
    static struct bytes b;
    vocab_write(m, &b);
    return vocab_open(&b);
}

#endif
