/*
 * grammar.c - grammars for a model's vocabulary: reads a text into a tree and compiles that. text/
 * owns grammars and must not know models.
 */
#include "text/grammar/grammar.h"

#include "model/model.h"

#define TEXT_MAX ((size_t)16 << 20)

static pith_status check_given(const pith_model *model, const char *text, size_t len,
                               pith_error *err)
{
    if (model == NULL || text == NULL)
        return pi_fail(err, PITH_INVALID, "grammar: model and text must not be NULL");
    if (len > TEXT_MAX)
        return pi_fail(err, PITH_INVALID, "grammar: %zu bytes of text are above 16 MiB", len);
    return PITH_OK;
}

pith_status pith_grammar_create_gbnf(const pith_model *model, const char *text, size_t len,
                                     const pith_grammar_params *params, pith_grammar **out,
                                     pith_error *err)
{
    pith_grammar_params p = {0};
    struct grammar_tree tree;
    PI_TRY(check_given(model, text, len, err));
    if (params != NULL)
        p = *params;
    grammar_tree_init(&tree);
    grammar_read_gbnf(&tree, text, len, p.root != NULL ? p.root : "root");
    pith_status status = pi_grammar_create(model->vocab, &tree, &p, out, err);
    grammar_tree_free(&tree);
    return status;
}

pith_status pith_grammar_create_json_schema(const pith_model *model, const char *text, size_t len,
                                            const pith_grammar_params *params, pith_grammar **out,
                                            pith_error *err)
{
    pith_grammar_params p = {0};
    struct grammar_tree tree;
    PI_TRY(check_given(model, text, len, err));
    if (params != NULL)
        p = *params;
    grammar_tree_init(&tree);
    grammar_read_schema(&tree, text, len, &p);
    pith_status status = pi_grammar_create(model->vocab, &tree, &p, out, err);
    grammar_tree_free(&tree);
    return status;
}
