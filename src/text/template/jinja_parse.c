/*
 * jinja_parse.c - statements of templates: from tokens to a tree. A row of a table is a statement;
 * tags that bring in other files (include, import, extends) are none of chat templates and refused.
 */
#include <stdio.h>

#include "text/template/jinja_builtin.h"
#include "text/template/jinja_tree.h"

static struct jinja_node *parse_body(struct jinja_parser *p, const char *const *ends);

static void expect_block_end(struct jinja_parser *p)
{
    if (jinja_peek(p)->kind == JINJA_T_BLOCK_END)
        p->at++;
    else
        jinja_syntax(p, "the tag should end here");
}

/* From the end of a tag to its closing one, of which the name is stepped over. */
static struct jinja_node *parse_until(struct jinja_parser *p, const char *end)
{
    const char *const ends[] = {end, NULL};
    expect_block_end(p);
    struct jinja_node *body = parse_body(p, ends);
    if (!jinja_skip_name(p, end))
        jinja_syntax(p, "a block lacks its end");
    return body;
}

/* ---- if, for ---- */

static struct jinja_node *parse_if(struct jinja_parser *p)
{
    static const char *const ends[] = {"elif", "else", "endif", NULL};
    struct jinja_node *first = jinja_node_new(p, JINJA_N_IF), *node = first;
    for (;;) {
        node->a = jinja_parse_tuple(p, false, NULL);
        expect_block_end(p);
        node->b = parse_body(p, ends);
        if (!jinja_skip_name(p, "elif"))
            break;
        node->flag = true;
        node->c = jinja_node_new(p, JINJA_N_IF);
        node = node->c;
        if (jinja_failed(p->h))
            return first;
    }
    if (jinja_skip_name(p, "else"))
        node->c = parse_until(p, "endif");
    else if (!jinja_skip_name(p, "endif"))
        jinja_syntax(p, "an if lacks its endif");
    return first;
}

static struct jinja_node *parse_for(struct jinja_parser *p)
{
    static const char *const ends[] = {"else", "endfor", NULL};
    struct jinja_node *node = jinja_node_new(p, JINJA_N_FOR);
    node->a = jinja_parse_target(p, "in", false);
    if (!jinja_skip_name(p, "in"))
        jinja_syntax(p, "a for lacks its in");
    node->b = jinja_parse_tuple(p, false, "recursive");
    if (jinja_skip_name(p, "if"))
        node->c = jinja_parse_expr(p, true);
    node->flag = jinja_skip_name(p, "recursive");
    expect_block_end(p);
    p->n_loop++;
    node->d = parse_body(p, ends);
    p->n_loop--;
    if (jinja_skip_name(p, "else"))
        node->e = parse_until(p, "endfor");
    else if (!jinja_skip_name(p, "endfor"))
        jinja_syntax(p, "a for lacks its endfor");
    return node;
}

static struct jinja_node *parse_break(struct jinja_parser *p)
{
    if (p->n_loop == 0)
        jinja_syntax(p, "a break stands outside of loops");
    return jinja_node_new(p, JINJA_N_BREAK);
}

static struct jinja_node *parse_continue(struct jinja_parser *p)
{
    if (p->n_loop == 0)
        jinja_syntax(p, "a continue stands outside of loops");
    return jinja_node_new(p, JINJA_N_CONTINUE);
}

/* ---- set, with ---- */

static struct jinja_node *parse_set(struct jinja_parser *p)
{
    struct jinja_node *node = jinja_node_new(p, JINJA_N_SET);
    node->a = jinja_parse_target(p, NULL, true);
    if (jinja_skip_op(p, '=')) {
        node->b = jinja_parse_tuple(p, true, NULL);
        return node;
    }
    node->kind = JINJA_N_SET_BLOCK;
    node->b = jinja_parse_filters(p, NULL, false);
    node->d = parse_until(p, "endset");
    return node;
}

static struct jinja_node *parse_with(struct jinja_parser *p)
{
    struct jinja_node *node = jinja_node_new(p, JINJA_N_WITH), **tail = &node->a;
    while (!jinja_failed(p->h) && jinja_peek(p)->kind != JINJA_T_BLOCK_END) {
        if (node->a != NULL)
            jinja_expect_op(p, ',');
        struct jinja_node *set = jinja_node_new(p, JINJA_N_SET);
        set->a = jinja_parse_target(p, NULL, false);
        jinja_expect_op(p, '=');
        set->b = jinja_parse_expr(p, true);
        *tail = set;
        tail = &set->next;
    }
    node->d = parse_until(p, "endwith");
    return node;
}

/* ---- macros and blocks of text ---- */

/* (a, b=1) */
static struct jinja_node *parse_signature(struct jinja_parser *p)
{
    struct jinja_node *first = NULL, **tail = &first;
    bool optional = false;
    jinja_expect_op(p, '(');
    while (!jinja_failed(p->h) && !jinja_skip_op(p, ')')) {
        if (first != NULL)
            jinja_expect_op(p, ',');
        struct jinja_node *param = jinja_node_new(p, JINJA_N_PARAM);
        param->name = jinja_expect_name(p);
        if (jinja_skip_op(p, '='))
            param->a = jinja_parse_expr(p, true);
        else if (optional)
            jinja_syntax(p, "non-default argument follows default argument");
        optional = param->a != NULL;
        *tail = param;
        tail = &param->next;
    }
    return first;
}

/* The body of a macro or call: its loops and special names are its own. */
static void parse_macro_body(struct jinja_parser *p, struct jinja_node *node, const char *end)
{
    uint8_t uses = p->uses;
    int32_t n_loop = p->n_loop;
    p->uses = 0;
    p->n_loop = 0;
    node->d = parse_until(p, end);
    node->uses = p->uses;
    p->uses = uses;
    p->n_loop = n_loop;
}

static struct jinja_node *parse_macro(struct jinja_parser *p)
{
    struct jinja_node *node = jinja_node_new(p, JINJA_N_MACRO);
    node->name = jinja_expect_name(p);
    node->a = parse_signature(p);
    parse_macro_body(p, node, "endmacro");
    return node;
}

static struct jinja_node *parse_call(struct jinja_parser *p)
{
    struct jinja_node *node = jinja_node_new(p, JINJA_N_CALL_BLOCK);
    if (jinja_at_op(p, '('))
        node->a = parse_signature(p);
    node->b = jinja_parse_expr(p, true);
    if (node->b->kind != JINJA_N_CALL)
        jinja_syntax(p, "expected call");
    node->name = jinja_intern(p, jinja_str_static(p->h, "caller"));
    parse_macro_body(p, node, "endcall");
    return node;
}

static struct jinja_node *parse_filter(struct jinja_parser *p)
{
    struct jinja_node *node = jinja_node_new(p, JINJA_N_FILTER_BLOCK);
    node->b = jinja_parse_filters(p, NULL, true);
    node->d = parse_until(p, "endfilter");
    return node;
}

/* Marks a text as the model's, for training; the text is printed. */
static struct jinja_node *parse_generation(struct jinja_parser *p)
{
    struct jinja_node *node = jinja_node_new(p, JINJA_N_SCOPE);
    int32_t n_loop = p->n_loop;
    p->n_loop = 0;
    node->d = parse_until(p, "endgeneration");
    p->n_loop = n_loop;
    return node;
}

/* ---- the body ---- */

static const struct {
    const char *name;
    struct jinja_node *(*parse)(struct jinja_parser *p);
} statements[] = {
    {"if", parse_if},       {"for", parse_for},
    {"set", parse_set},     {"macro", parse_macro},
    {"call", parse_call},   {"filter", parse_filter},
    {"with", parse_with},   {"generation", parse_generation},
    {"break", parse_break}, {"continue", parse_continue},
};

static struct jinja_node *parse_statement(struct jinja_parser *p)
{
    struct jinja_node *node = NULL;
    for (size_t i = 0; i < PI_LEN(statements) && node == NULL; i++)
        if (jinja_skip_name(p, statements[i].name))
            node = statements[i].parse(p);
    if (node == NULL) {
        char what[96];
        const struct jinja_str *name = jinja_expect_name(p);
        snprintf(what, sizeof(what), "Encountered unknown tag '%.*s'",
                 (int)(name->len < 40 ? name->len : 40), name->data);
        jinja_syntax(p, what);
        return jinja_node_new(p, JINJA_N_DATA);
    }
    expect_block_end(p);
    return node;
}

/* At the beginning of a tag: whether it is one of those that end the body. */
static bool at_end(struct jinja_parser *p, const char *const *ends)
{
    for (; ends != NULL && *ends != NULL; ends++)
        if (jinja_at_name(p, *ends))
            return true;
    return false;
}

static struct jinja_node *parse_print(struct jinja_parser *p)
{
    struct jinja_node *node = jinja_node_new(p, JINJA_N_PRINT);
    node->a = jinja_parse_tuple(p, true, NULL);
    if (jinja_peek(p)->kind == JINJA_T_VAR_END)
        p->at++;
    else
        jinja_syntax(p, "the tag should end here");
    return node;
}

/* Ends behind the beginning of a tag of ends, or at the end of the text. */
static struct jinja_node *parse_body(struct jinja_parser *p, const char *const *ends)
{
    struct jinja_node *first = NULL, **tail = &first;
    if (!jinja_enter(p->h))
        return NULL;
    while (!jinja_failed(p->h) && jinja_peek(p)->kind != JINJA_T_END) {
        const struct jinja_token *token = jinja_peek(p);
        p->at++;
        if (token->kind == JINJA_T_DATA) {
            *tail = jinja_node_new(p, JINJA_N_DATA);
            (*tail)->value = token->value;
        } else if (token->kind == JINJA_T_VAR_BEGIN) {
            *tail = parse_print(p);
        } else if (at_end(p, ends)) {
            break;
        } else {
            *tail = parse_statement(p);
        }
        tail = &(*tail)->next;
    }
    jinja_leave(p->h);
    return first;
}

static const struct jinja_str *own_name(struct jinja_parser *p, const char *name)
{
    return jinja_intern(p, jinja_str_static(p->h, name));
}

struct jinja_tree jinja_parse(struct jinja_heap *h, const char *text, size_t len)
{
    struct jinja_parser p = {.h = h};
    struct jinja_tree tree = {0};
    p.names = jinja_dict_new(h);
    tree.names = (struct jinja_names){own_name(&p, "loop"), own_name(&p, "caller"),
                                      own_name(&p, "kwargs"), own_name(&p, "varargs")};
    jinja_lex(h, text, len, &p.tokens);
    if (!jinja_failed(h))
        tree.body = parse_body(&p, NULL);
    return tree;
}
