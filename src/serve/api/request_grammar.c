/*
 * request_grammar.c - the grammar of calls with the schemas of their arguments. It has GBNF of the
 * form (tools_grammar.c) and one schema after the other in one tree of rules.
 *
 * Invariant: rules of a schema are found by name while that schema is read, and never again: two
 * schemas may both have "#/$defs/x".
 */
#include "serve/api/request_body.h"

#include <string.h>

#include "model/model.h"
#include "text/grammar/grammar.h"

/* Whether a schema is one that can be promised. */
static bool can_be_read(const char *schema, const pith_grammar_params *params)
{
    struct grammar_tree tree;
    grammar_tree_init(&tree);
    grammar_read_schema(&tree, schema, strlen(schema), params);
    bool good = !jinja_failed(&tree.heap);
    grammar_tree_free(&tree);
    return good;
}

/* Reads a schema as the rule that the GBNF text uses. */
static void add_schema(struct grammar_tree *t, const struct serve_tools_schema *s,
                       const pith_grammar_params *params)
{
    uint32_t first = t->n_rule;
    bool other = s->otherwise != NULL && !can_be_read(s->schema, params);
    const char *schema = other ? s->otherwise : s->schema;
    grammar_read_schema(t, schema, strlen(schema), params);
    if (jinja_failed(&t->heap))
        return;
    for (uint32_t i = first; i < t->n_rule; i++)
        t->rule[i].name = i == t->root ? s->rule : "";
}

pith_status request_call_grammar(const pith_model *model, const struct serve_tools_style *style,
                                 const struct serve_tools_grammar_options *options,
                                 pith_grammar **out, pith_error *err)
{
    struct serve_tools_grammar calls;
    struct grammar_tree tree;
    pith_grammar_params params;
    PI_TRY(serve_tools_grammar_create(style, options, &calls, err));
    pith_grammar_params_default(&params);
    if (options->choice == SERVE_TOOLS_AUTO) {
        params.trigger = calls.triggers;
        params.n_trigger = calls.n_trigger;
        params.n_trigger_first = calls.n_first;
        params.keeps_trigger = true;
        params.again = options->parallel;
    }
    grammar_tree_init(&tree);
    for (size_t i = 0; i < calls.n_schema && !jinja_failed(&tree.heap); i++)
        add_schema(&tree, &calls.schemas[i], &params);
    if (!jinja_failed(&tree.heap))
        grammar_read_gbnf(&tree, calls.gbnf, strlen(calls.gbnf), "root");
    pith_status status = pi_grammar_create(model->vocab, &tree, &params, out, err);
    grammar_tree_free(&tree);
    serve_tools_grammar_free(&calls);
    return status;
}
