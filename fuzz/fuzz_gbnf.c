/*
 * fuzz_gbnf.c - any text as a grammar in GBNF, and a text chosen under its masks. A finding is a
 * sanitizer's report, a leak or a refusal without a sentence. So is a mask without a token, or a
 * token of a mask that the grammar refuses.
 */
#include "fuzz/grammar_walk.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct grammar_tree tree;
    const pith_grammar_params params = {0};
    pith_grammar *g = NULL;
    pith_error err = {.message = ""};
    char out[WALK_MOST * 8];
    size_t len;
    grammar_tree_init(&tree);
    tree.heap.limits.steps = 200000;
    grammar_read_gbnf(&tree, (const char *)data, size, "root");
    if (pi_grammar_create(small_vocab(), &tree, &params, &g, &err) == PITH_OK)
        walk(g, size, out, sizeof(out), &len);
    else
        require(err.message[0] != 0 && err.status != PITH_NOMEM);
    pith_grammar_free(g);
    grammar_tree_free(&tree);
    return 0;
}
