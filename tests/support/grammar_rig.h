/*
 * grammar_rig.h - grammars over a vocabulary that is always there: one SentencePiece token for each
 * byte, and a few longer ones. Texts are given as bytes.
 */
#ifndef GRAMMAR_RIG_H
#define GRAMMAR_RIG_H

#include "pith/grammar.h"
#include "text/grammar/grammar.h"
#include "vocab_maker.h"

static struct pi_vocab *rig_vocab;

/* Ids: 0 unknown, 1 BOS, 2 EOS, 3 + b the byte b, then the words. */
static const char *const rig_words[] = {"tr",      "true",    "false,", "\":",  "\",",   "}]",
                                        "ab",      "abc",     "a",      "123",  "\"a",   "é",
                                        "\xc3x\"", "a\",\"b", "{\"",    "<go>", "<go>1", "<go>x"};
#define RIG_WORD(i) (3 + 256 + (i))

static void rig_setup(void)
{
    static struct made_vocab m;
    m = (struct made_vocab){
        .model = "llama", .bos = 1, .eos = 2, .add_bos = 0, .add_eos = 0, .add_space_prefix = 0};
    static const char *const special[] = {"<unk>", "<s>", "</s>"};
    for (int i = 0; i < 3; i++) {
        snprintf(m.token[m.n_token].text, sizeof(m.token[0].text), "%s", special[i]);
        m.token[m.n_token++].type = i == 0 ? UNKNOWN : CONTROL;
    }
    for (int b = 0; b < 256; b++) {
        snprintf(m.token[m.n_token].text, sizeof(m.token[0].text), "<0x%02X>", b);
        m.token[m.n_token++].type = BYTE;
    }
    for (size_t i = 0; i < sizeof(rig_words) / sizeof(rig_words[0]); i++) {
        snprintf(m.token[m.n_token].text, sizeof(m.token[0].text), "%s", rig_words[i]);
        m.token[m.n_token++].type = NORMAL;
    }
    rig_vocab = vocab_made(&m);
    assert_non_null(rig_vocab);
}

static void rig_teardown(void)
{
    pi_vocab_free(rig_vocab);
}

/* A grammar in GBNF, or a schema where the text begins with { or is true or false. */
static pith_status rig_make(const char *text, const pith_grammar_params *params, pith_grammar **out,
                            pith_error *why)
{
    pith_grammar_params p = {0};
    struct grammar_tree tree;
    grammar_tree_init(&tree);
    if (params != NULL)
        p = *params;
    if (text[0] == '{' || strcmp(text, "true") == 0 || strcmp(text, "false") == 0)
        grammar_read_schema(&tree, text, strlen(text), &p);
    else
        grammar_read_gbnf(&tree, text, strlen(text), "root");
    pith_status status = pi_grammar_create(rig_vocab, &tree, &p, out, why);
    grammar_tree_free(&tree);
    return status;
}

static pith_grammar *rig_grammar(const char *text, const pith_grammar_params *params)
{
    pith_grammar *g = NULL;
    if (rig_make(text, params, &g, &err) != PITH_OK)
        fail_msg("%s: %s", text, err.message);
    return g;
}

static pith_grammar_state *rig_state(const pith_grammar *g)
{
    pith_grammar_state *s = NULL;
    if (pith_grammar_state_create(g, &s, &err) != PITH_OK)
        fail_msg("%s", err.message);
    return s;
}

/* 2: the whole text is allowed, 1: it is a beginning of one, 0: neither. */
static int rig_judge(const pith_grammar *g, const char *text)
{
    pith_grammar_state *s = rig_state(g);
    int result = 0;
    if (pith_grammar_state_accept_bytes(s, text, strlen(text), &err) == PITH_OK)
        result = pith_grammar_state_can_end(s) ? 2 : 1;
    pith_grammar_state_free(s);
    return result;
}

/* texts end with NULL; each must be judged so. */
static void rig_expect(const char *grammar, const pith_grammar_params *params, int judged,
                       const char *const *texts)
{
    pith_grammar *g = rig_grammar(grammar, params);
    for (; *texts != NULL; texts++) {
        int got = rig_judge(g, *texts);
        if (got != judged)
            fail_msg("%s: %s is judged %d, not %d", grammar, *texts, got, judged);
    }
    pith_grammar_free(g);
}

#define ALLOWS(grammar, ...) rig_expect(grammar, NULL, 2, (const char *const[]){__VA_ARGS__, NULL})
#define FORBIDS(grammar, ...) rig_expect(grammar, NULL, 0, (const char *const[]){__VA_ARGS__, NULL})

/* The grammar is refused, with these words in its sentence. */
static void rig_refuse(const char *grammar, pith_status status, const char *words)
{
    pith_grammar *g = NULL;
    err = (pith_error){0};
    pith_status got = rig_make(grammar, NULL, &g, &err);
    if (got != status || strstr(err.message, words) == NULL)
        fail_msg("%s: %s \"%s\", not %s with \"%s\"", grammar, pith_status_name(got), err.message,
                 pith_status_name(status), words);
    pith_grammar_free(g);
}

/* A token's bytes in the rig's vocabulary. */
static size_t rig_bytes(int32_t id, char out[64])
{
    size_t n = 0;
    assert_int_equal(pi_vocab_token_bytes(rig_vocab, id, false, out, 64, &n), PITH_OK);
    return n;
}

/* The mask behind a text must be what accepting each token says. Returns the tokens allowed. */
static int rig_check_mask(const pith_grammar *g, const char *text)
{
    uint64_t bits[8] = {0};
    int n_allowed = 0;
    pith_grammar_state *s = rig_state(g);
    assert_int_equal(pith_grammar_state_accept_bytes(s, text, strlen(text), &err), PITH_OK);
    assert_int_equal(pith_grammar_state_mask(s, bits, &err), PITH_OK);
    for (int32_t id = 0; id < pi_vocab_size(rig_vocab); id++) {
        char piece[64];
        size_t n = rig_bytes(id, piece);
        pith_grammar_state *t = rig_state(g);
        assert_int_equal(pith_grammar_state_accept_bytes(t, text, strlen(text), &err), PITH_OK);
        bool allowed = id == 2
                           ? pith_grammar_state_can_end(t)
                           : n > 0 && pith_grammar_state_accept_bytes(t, piece, n, &err) == PITH_OK;
        bool masked = (bits[id / 64] >> (id % 64) & 1) != 0;
        if (allowed != masked)
            fail_msg("behind \"%s\" token %d is %d in the mask, and %d", text, id, masked, allowed);
        n_allowed += allowed;
        pith_grammar_state_free(t);
    }
    pith_grammar_state_free(s);
    return n_allowed;
}

#endif
