/*
 * request_grammar.c - the grammar of calls with the schemas of their arguments. It has GBNF of the
 * form (tools_grammar.c) and one schema after the other in one tree of rules.
 *
 * Invariant: rules of a schema are found by name while that schema is read, and never again: two
 * schemas may both have "#/$defs/x".
 */
#include "serve/api/request_body.h"

#include <string.h>

#include "base/mem.h"
#include "model/model.h"
#include "text/grammar/grammar.h"

pith_status request_check_schema(const char *schema, pith_error *err)
{
    struct grammar_tree tree;
    pith_grammar_params params;
    pith_grammar_params_default(&params);
    grammar_tree_init(&tree);
    grammar_read_schema(&tree, schema, strlen(schema), &params);
    pith_status status = jinja_failed(&tree.heap) ? grammar_tree_failure(&tree, err) : PITH_OK;
    grammar_tree_free(&tree);
    return status;
}

/* Reads a schema as the rule that the GBNF text uses. */
static void add_schema(struct grammar_tree *t, const struct serve_tools_schema *s,
                       const pith_grammar_params *params)
{
    uint32_t first = t->n_rule;
    bool other = s->otherwise != NULL && request_check_schema(s->schema, NULL) != PITH_OK;
    const char *schema = other ? s->otherwise : s->schema;
    grammar_read_schema(t, schema, strlen(schema), params);
    if (jinja_failed(&t->heap))
        return;
    for (uint32_t i = first; i < t->n_rule; i++)
        t->rule[i].name = i == t->root ? s->rule : "";
}

/* One rule of the calls' grammar with all that it uses. */
static pith_status compile(const pith_model *model, const struct serve_tools_grammar *calls,
                           const char *root, const pith_grammar_params *params, pith_grammar **out,
                           pith_error *err)
{
    struct grammar_tree tree;
    grammar_tree_init(&tree);
    for (size_t i = 0; i < calls->n_schema && !jinja_failed(&tree.heap); i++)
        add_schema(&tree, &calls->schemas[i], params);
    if (!jinja_failed(&tree.heap))
        grammar_read_gbnf(&tree, calls->gbnf, strlen(calls->gbnf), root);
    pith_status status = pi_grammar_create(model->vocab, &tree, params, out, err);
    grammar_tree_free(&tree);
    return status;
}

static bool is_control(const pith_model *model, int32_t id)
{
    char bytes[256];
    size_t len = 0;
    return pith_token_bytes(model, id, false, bytes, sizeof(bytes), &len) == PITH_OK && len == 0;
}

/* Control tokens that are markers of the form count as their text, which a model would else have to
   spell out. */
static pith_status add_markers(const pith_model *model, const char *gbnf, pith_grammar *grammar,
                               pith_error *err)
{
    size_t cap = strlen(gbnf), len = 0;
    char *text = pi_mem_alloc(PI_MEM_OTHER, cap + 1);
    int32_t *ids = pi_mem_alloc_n(PI_MEM_OTHER, cap + 1, sizeof(*ids)), n = 0;
    pith_status status = PITH_NOMEM;
    for (size_t i = 0; i < cap && text != NULL; i++) /* escapes are of brackets in markers */
        if (gbnf[i] != '\\')
            text[len++] = gbnf[i];
    if (text == NULL || ids == NULL)
        pi_fail(err, status, "no memory for the grammar of calls");
    else
        status = pith_tokenize(model, text, len, PITH_TOKENIZE_SPECIAL, ids, (int32_t)cap, &n, err);
    for (int32_t i = 0; i < n && status == PITH_OK; i++)
        if (is_control(model, ids[i]))
            pi_grammar_add_marker(grammar, ids[i]);
    pi_mem_free(text);
    pi_mem_free(ids);
    return status;
}

pith_status request_call_grammar(const pith_model *model, const struct serve_tools_style *style,
                                 const struct serve_tools_grammar_options *options,
                                 pith_grammar **out, pith_error *err)
{
    struct serve_tools_grammar calls;
    pith_grammar_params params;
    pith_grammar *made[2] = {NULL, NULL};
    static const char *const roots[] = {"root", "other"};
    bool special = serve_tools_style_special(style, model);
    PI_TRY(serve_tools_grammar_create(style, options, &calls, err));
    pith_grammar_params_default(&params);
    if (options->choice == SERVE_TOOLS_AUTO) {
        params.trigger = calls.triggers;
        params.n_trigger = calls.n_trigger;
        params.n_trigger_first = calls.n_first;
        params.keeps_trigger = true;
        params.again = options->parallel;
    }
    pith_status status = PITH_OK;
    for (int i = 0; i < (options->choice == SERVE_TOOLS_OR_ANSWER ? 2 : 1); i++) {
        if (status == PITH_OK)
            status = compile(model, &calls, roots[i], &params, &made[i], err);
        if (status == PITH_OK && special)
            status = add_markers(model, calls.gbnf, made[i], err);
    }
    serve_tools_grammar_free(&calls);
    if (status != PITH_OK) {
        pith_grammar_free(made[0]);
        pith_grammar_free(made[1]);
        return status;
    }
    if (made[1] != NULL)
        pi_grammar_or(made[0], made[1]);
    *out = made[0];
    return PITH_OK;
}
