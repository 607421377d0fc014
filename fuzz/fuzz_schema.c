/*
 * fuzz_schema.c - any text as a JSON schema, and texts chosen under its masks, which must be JSON.
 * A finding is a sanitizer's report, a leak or a refusal without a sentence. So is a mask without a
 * token, or a complete text that is not JSON.
 */
#include "fuzz/grammar_walk.h"
#include "text/value/jinja_json.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_json(const char *text, size_t len)
{
    struct jinja_limits limits;
    struct jinja_heap h;
    jinja_limits_default(&limits);
    jinja_heap_init(&h, &limits);
    jinja_json_read(&h, text, len);
    require(!jinja_failed(&h));
    jinja_heap_free(&h);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct grammar_tree tree;
    const pith_grammar_params params = {.compact = size % 2 == 0, .open_objects = size % 3 == 0};
    pith_grammar *g = NULL;
    pith_error err = {.message = ""};
    char out[WALK_MOST * 8];
    size_t len;
    grammar_tree_init(&tree);
    tree.heap.limits.steps = 200000;
    grammar_read_schema(&tree, (const char *)data, size, &params);
    if (pi_grammar_create(small_vocab(), &tree, &params, &g, &err) == PITH_OK) {
        for (uint64_t seed = 0; seed < 3; seed++)
            if (walk(g, size + seed, out, sizeof(out), &len))
                check_json(out, len);
    } else {
        require(err.message[0] != 0 && err.status != PITH_NOMEM);
    }
    pith_grammar_free(g);
    grammar_tree_free(&tree);
    return 0;
}
