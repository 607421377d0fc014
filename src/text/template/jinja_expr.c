/*
 * jinja_expr.c - expressions of templates: from tokens to a tree, with the precedence that jinja2
 * gives to operators. It recurses over nested expressions, as deep as the heap's limit allows.
 */
#include "text/template/jinja_builtin.h"
#include "text/template/jinja_tree.h"

static struct jinja_node *parse_unary(struct jinja_parser *p, bool with_filter);

/* ---- steps ---- */

bool jinja_at_op(const struct jinja_parser *p, uint16_t op)
{
    return jinja_peek(p)->kind == JINJA_T_OP && jinja_peek(p)->op == op;
}

bool jinja_at_name(const struct jinja_parser *p, const char *name)
{
    return jinja_peek(p)->kind == JINJA_T_NAME && jinja_str_is(jinja_peek(p)->value.u.s, name);
}

/* The end is not stepped over. */
static void step(struct jinja_parser *p)
{
    if (jinja_peek(p)->kind != JINJA_T_END)
        p->at++;
}

bool jinja_skip_op(struct jinja_parser *p, uint16_t op)
{
    if (!jinja_at_op(p, op))
        return false;
    step(p);
    return true;
}

bool jinja_skip_name(struct jinja_parser *p, const char *name)
{
    if (!jinja_at_name(p, name))
        return false;
    step(p);
    return true;
}

void jinja_syntax(struct jinja_parser *p, const char *what)
{
    jinja_fail(p->h, PITH_INVALID, "chat template: line %d: %s", (int)jinja_peek(p)->line, what);
}

void jinja_expect_op(struct jinja_parser *p, uint16_t op)
{
    char what[40] = "'..' is missing here";
    if (jinja_skip_op(p, op))
        return;
    what[1] = op > 0xff ? (char)(op >> 8) : ' ';
    what[2] = (char)(op & 0xff);
    jinja_syntax(p, what);
}

const struct jinja_str *jinja_intern(struct jinja_parser *p, const struct jinja_str *name)
{
    if (jinja_failed(p->h))
        return name;
    struct jinja_value *known = jinja_dict_get(p->h, p->names.u.dict, jinja_of(name));
    if (known != NULL)
        return known->u.s;
    jinja_dict_set(p->h, p->names.u.dict, jinja_of(name), jinja_of(name));
    return name;
}

const struct jinja_str *jinja_expect_name(struct jinja_parser *p)
{
    const struct jinja_token *token = jinja_peek(p);
    if (token->kind != JINJA_T_NAME) {
        jinja_syntax(p, "a name is missing here");
        return jinja_str_static(p->h, "");
    }
    step(p);
    return jinja_intern(p, token->value.u.s);
}

struct jinja_node *jinja_node_new(struct jinja_parser *p, enum jinja_node_kind kind)
{
    struct jinja_node *node = jinja_alloc(p->h, 1, sizeof(*node));
    if (node == NULL) { /* its content is never read */
        p->spare = (struct jinja_node){0};
        return &p->spare;
    }
    node->kind = (uint8_t)kind;
    node->line = jinja_peek(p)->line;
    return node;
}

static struct jinja_node *with_parts(struct jinja_parser *p, enum jinja_node_kind kind,
                                     struct jinja_node *a, struct jinja_node *b)
{
    struct jinja_node *node = jinja_node_new(p, kind);
    node->a = a;
    node->b = b;
    return node;
}

/* ---- values ---- */

/* Items up to the closing bracket, which is stepped over. */
static struct jinja_node *parse_items(struct jinja_parser *p, uint16_t close)
{
    struct jinja_node *first = NULL, **tail = &first;
    while (!jinja_failed(p->h) && !jinja_skip_op(p, close)) {
        if (first != NULL) {
            jinja_expect_op(p, ',');
            if (jinja_skip_op(p, close))
                break;
        }
        *tail = jinja_parse_expr(p, true);
        if (close == '}') {
            jinja_expect_op(p, ':');
            *tail = with_parts(p, JINJA_N_PAIR, *tail, jinja_parse_expr(p, true));
        }
        tail = &(*tail)->next;
    }
    return first;
}

static struct jinja_node *parse_name(struct jinja_parser *p, const struct jinja_token *token)
{
    static const struct {
        const char *name;
        struct jinja_value value;
    } constants[] = {
        {"true", {.kind = JINJA_BOOL, .u.b = true}},
        {"false", {.kind = JINJA_BOOL}},
        {"True", {.kind = JINJA_BOOL, .u.b = true}},
        {"False", {.kind = JINJA_BOOL}},
        {"none", {.kind = JINJA_NONE}},
        {"None", {.kind = JINJA_NONE}},
    };
    struct jinja_node *node = jinja_node_new(p, JINJA_N_NAME);
    node->name = jinja_intern(p, token->value.u.s);
    for (size_t i = 0; i < PI_LEN(constants); i++) {
        if (jinja_str_is(node->name, constants[i].name)) {
            node->kind = JINJA_N_CONST;
            node->value = constants[i].value;
        }
    }
    p->uses |= jinja_str_is(node->name, "varargs") ? JINJA_USES_VARARGS : 0;
    p->uses |= jinja_str_is(node->name, "kwargs") ? JINJA_USES_KWARGS : 0;
    p->uses |= jinja_str_is(node->name, "caller") ? JINJA_USES_CALLER : 0;
    return node;
}

/* Strings that stand side by side are one. */
static struct jinja_node *parse_const(struct jinja_parser *p, const struct jinja_token *token)
{
    struct jinja_node *node = jinja_node_new(p, JINJA_N_CONST);
    node->value = token->value;
    while (node->value.kind == JINJA_STR && jinja_peek(p)->kind == JINJA_T_CONST &&
           jinja_peek(p)->value.kind == JINJA_STR && !jinja_failed(p->h)) {
        struct jinja_buf b = {.h = p->h};
        jinja_put(&b, node->value.u.s);
        jinja_put(&b, jinja_peek(p)->value.u.s);
        node->value = jinja_of(jinja_buf_end(&b));
        step(p);
    }
    return node;
}

static struct jinja_node *parse_bracket(struct jinja_parser *p)
{
    struct jinja_node *node = jinja_node_new(p, JINJA_N_LIST);
    if (jinja_skip_op(p, '(')) {
        if (jinja_skip_op(p, ')')) {
            node->kind = JINJA_N_TUPLE;
            return node;
        }
        node = jinja_parse_tuple(p, true, NULL);
        jinja_expect_op(p, ')');
    } else if (jinja_skip_op(p, '[')) {
        node->a = parse_items(p, ']');
    } else if (jinja_skip_op(p, '{')) {
        node->kind = JINJA_N_DICT;
        node->a = parse_items(p, '}');
    } else {
        jinja_syntax(p, "a value is missing here");
    }
    return node;
}

static struct jinja_node *parse_primary(struct jinja_parser *p)
{
    const struct jinja_token *token = jinja_peek(p);
    if (token->kind == JINJA_T_NAME) {
        step(p);
        return parse_name(p, token);
    }
    if (token->kind == JINJA_T_CONST) {
        step(p);
        return parse_const(p, token);
    }
    return parse_bracket(p);
}

/* ---- what follows a value ---- */

static struct jinja_node *parse_arg(struct jinja_parser *p)
{
    struct jinja_node *arg = jinja_node_new(p, JINJA_N_ARG);
    if (jinja_skip_op(p, '*')) {
        arg->op = '*';
    } else if (jinja_skip_op(p, JINJA_OP2('*', '*'))) {
        arg->op = JINJA_OP2('*', '*');
    } else if (jinja_peek(p)->kind == JINJA_T_NAME) {
        const struct jinja_token *next = jinja_peek(p) + 1;
        if (next->kind == JINJA_T_OP && next->op == '=') {
            arg->name = jinja_expect_name(p);
            step(p);
        }
    }
    arg->a = jinja_parse_expr(p, true);
    return arg;
}

/* Behind the opening bracket. Positional ones come first, then named ones, then **. */
static struct jinja_node *parse_args(struct jinja_parser *p)
{
    struct jinja_node *first = NULL, **tail = &first;
    int32_t stage = 0;
    while (!jinja_failed(p->h) && !jinja_skip_op(p, ')')) {
        if (first != NULL) {
            jinja_expect_op(p, ',');
            if (jinja_skip_op(p, ')'))
                break;
        }
        struct jinja_node *arg = parse_arg(p);
        int32_t is = arg->op == JINJA_OP2('*', '*') ? 3
                     : arg->op == '*'               ? 2
                     : arg->name != NULL            ? 1
                                                    : 0;
        /* As jinja2 refuses: two of a star, and a positional one behind anything else. */
        if (stage == 3 || (is == 0 && stage > 0) || (is == 2 && stage == 2))
            jinja_syntax(p, "an argument stands in the wrong place");
        stage = is == 1 && stage == 2 ? 2 : is;
        *tail = arg;
        tail = &arg->next;
    }
    return first;
}

/* a, a:b, a:b:c, each of which may be left out. */
static struct jinja_node *parse_index(struct jinja_parser *p)
{
    struct jinja_node *slice = jinja_node_new(p, JINJA_N_SLICE);
    struct jinja_node **part[3] = {&slice->a, &slice->b, &slice->c};
    for (int i = 0; i < 3; i++) {
        if (!jinja_at_op(p, ':') && !jinja_at_op(p, ']') && !jinja_at_op(p, ','))
            *part[i] = jinja_parse_expr(p, true);
        if (i == 2 || !jinja_skip_op(p, ':')) {
            if (i == 0 && slice->a == NULL)
                jinja_syntax(p, "an index is missing here");
            return i == 0 ? slice->a : slice;
        }
    }
    return slice;
}

static struct jinja_node *parse_dot(struct jinja_parser *p, struct jinja_node *of)
{
    const struct jinja_token *token = jinja_peek(p);
    struct jinja_node *node = with_parts(p, JINJA_N_ATTR, of, NULL);
    if (token->kind == JINJA_T_CONST && token->value.kind == JINJA_INT) {
        node->kind = JINJA_N_ITEM;
        node->b = jinja_node_new(p, JINJA_N_CONST);
        node->b->value = token->value;
        step(p);
    } else {
        node->name = jinja_expect_name(p);
    }
    return node;
}

static struct jinja_node *parse_postfix(struct jinja_parser *p, struct jinja_node *node)
{
    while (!jinja_failed(p->h)) {
        if (jinja_skip_op(p, '.')) {
            node = parse_dot(p, node);
        } else if (jinja_skip_op(p, '[')) {
            node = with_parts(p, JINJA_N_ITEM, node, parse_index(p));
            jinja_expect_op(p, ']');
        } else if (jinja_skip_op(p, '(')) {
            node = with_parts(p, JINJA_N_CALL, node, NULL);
            node->b = parse_args(p);
        } else {
            break;
        }
    }
    return node;
}

/* a.b.c */
static const struct jinja_str *dotted_name(struct jinja_parser *p)
{
    const struct jinja_str *name = jinja_expect_name(p);
    while (jinja_skip_op(p, '.')) {
        struct jinja_buf b = {.h = p->h};
        jinja_put(&b, name);
        jinja_put_text(&b, ".");
        jinja_put(&b, jinja_expect_name(p));
        name = jinja_intern(p, jinja_buf_end(&b));
    }
    return name;
}

struct jinja_node *jinja_parse_filters(struct jinja_parser *p, struct jinja_node *node, bool start)
{
    while (!jinja_failed(p->h) && (start || jinja_skip_op(p, '|'))) {
        node = with_parts(p, JINJA_N_FILTER, node, NULL);
        node->name = dotted_name(p);
        node->builtin = jinja_find_filter(node->name);
        if (jinja_skip_op(p, '('))
            node->b = parse_args(p);
        start = false;
    }
    return node;
}

/* The argument of a test may stand without brackets. */
static bool at_bare_arg(struct jinja_parser *p)
{
    const struct jinja_token *token = jinja_peek(p);
    if (jinja_at_name(p, "else") || jinja_at_name(p, "or") || jinja_at_name(p, "and"))
        return false;
    if (jinja_at_name(p, "is"))
        jinja_syntax(p, "You cannot chain multiple tests with is");
    return token->kind == JINJA_T_NAME || token->kind == JINJA_T_CONST || jinja_at_op(p, '[') ||
           jinja_at_op(p, '{');
}

static struct jinja_node *parse_test(struct jinja_parser *p, struct jinja_node *of)
{
    bool negated = jinja_skip_name(p, "not");
    struct jinja_node *node = with_parts(p, JINJA_N_TEST, of, NULL);
    node->name = dotted_name(p);
    node->builtin = jinja_find_test(node->name);
    if (jinja_skip_op(p, '(')) {
        node->b = parse_args(p);
    } else if (at_bare_arg(p)) {
        node->b = jinja_node_new(p, JINJA_N_ARG);
        node->b->a = parse_postfix(p, parse_primary(p));
    }
    return negated ? with_parts(p, JINJA_N_NOT, node, NULL) : node;
}

static struct jinja_node *parse_filter_expr(struct jinja_parser *p, struct jinja_node *node)
{
    while (!jinja_failed(p->h)) {
        if (jinja_at_op(p, '|')) {
            node = jinja_parse_filters(p, node, false);
        } else if (jinja_skip_name(p, "is")) {
            node = parse_test(p, node);
        } else if (jinja_skip_op(p, '(')) {
            node = with_parts(p, JINJA_N_CALL, node, NULL);
            node->b = parse_args(p);
        } else {
            break;
        }
    }
    return node;
}

/* ---- operators, the tightest first ---- */

static struct jinja_node *parse_unary(struct jinja_parser *p, bool with_filter)
{
    struct jinja_node *node;
    bool minus = jinja_at_op(p, '-');
    if (!jinja_enter(p->h))
        return jinja_node_new(p, JINJA_N_CONST);
    if (minus || jinja_at_op(p, '+')) {
        step(p);
        node = with_parts(p, JINJA_N_SIGN, parse_unary(p, false), NULL);
        node->op = minus ? '-' : '+';
    } else {
        node = parse_primary(p);
    }
    node = parse_postfix(p, node);
    if (with_filter)
        node = parse_filter_expr(p, node);
    jinja_leave(p->h);
    return node;
}

/* Levels of operators that group from the left: power, product, ~. */
static const uint16_t math[][4] = {
    {JINJA_OP2('*', '*')},
    {'*', '/', JINJA_OP2('/', '/'), '%'},
    {'~'},
};

static struct jinja_node *parse_math(struct jinja_parser *p, int level)
{
    if (level < 0)
        return parse_unary(p, true);
    struct jinja_node *left = parse_math(p, level - 1);
    while (!jinja_failed(p->h) && jinja_peek(p)->kind == JINJA_T_OP) {
        uint16_t op = jinja_peek(p)->op;
        bool here = false;
        for (int i = 0; i < 4; i++)
            here = here || (math[level][i] != 0 && math[level][i] == op);
        if (!here)
            break;
        step(p);
        left = with_parts(p, JINJA_N_MATH, left, parse_math(p, level - 1));
        left->op = op;
    }
    return left;
}

/* a ~ b ~ c is one node: parts are joined at once. */
static struct jinja_node *join_parts(struct jinja_parser *p, struct jinja_node *node)
{
    struct jinja_node *parts = NULL;
    if (node->kind != JINJA_N_MATH || node->op != '~')
        return node;
    while (node->kind == JINJA_N_MATH && node->op == '~') {
        node->b->next = parts;
        parts = node->b;
        node = node->a;
    }
    node->next = parts;
    return with_parts(p, JINJA_N_CONCAT, node, NULL);
}

static struct jinja_node *parse_concat(struct jinja_parser *p)
{
    return join_parts(p, parse_math(p, 2));
}

static struct jinja_node *parse_sum(struct jinja_parser *p)
{
    struct jinja_node *left = parse_concat(p);
    while (!jinja_failed(p->h) && (jinja_at_op(p, '+') || jinja_at_op(p, '-'))) {
        uint16_t op = jinja_peek(p)->op;
        step(p);
        left = with_parts(p, JINJA_N_MATH, left, parse_concat(p));
        left->op = op;
    }
    return left;
}

/* 'i': in, 'n': not in; 0: no comparison stands here. */
static uint16_t skip_comparison(struct jinja_parser *p)
{
    static const uint16_t ops[] = {'<',
                                   '>',
                                   JINJA_OP2('=', '='),
                                   JINJA_OP2('!', '='),
                                   JINJA_OP2('<', '='),
                                   JINJA_OP2('>', '=')};
    for (size_t i = 0; i < PI_LEN(ops); i++)
        if (jinja_skip_op(p, ops[i]))
            return ops[i];
    if (jinja_skip_name(p, "in"))
        return 'i';
    const struct jinja_token *token = jinja_peek(p);
    if (jinja_at_name(p, "not") && token[1].kind == JINJA_T_NAME &&
        jinja_str_is(token[1].value.u.s, "in")) {
        p->at += 2;
        return 'n';
    }
    return 0;
}

static struct jinja_node *parse_compare(struct jinja_parser *p)
{
    struct jinja_node *left = parse_sum(p), *first = NULL, **tail = &first;
    uint16_t op;
    while (!jinja_failed(p->h) && (op = skip_comparison(p)) != 0) {
        *tail = with_parts(p, JINJA_N_OPERAND, parse_sum(p), NULL);
        (*tail)->op = op;
        tail = &(*tail)->next;
    }
    return first != NULL ? with_parts(p, JINJA_N_COMPARE, left, first) : left;
}

static struct jinja_node *parse_not(struct jinja_parser *p)
{
    if (!jinja_skip_name(p, "not"))
        return parse_compare(p);
    if (!jinja_enter(p->h))
        return jinja_node_new(p, JINJA_N_CONST);
    struct jinja_node *node = with_parts(p, JINJA_N_NOT, parse_not(p), NULL);
    jinja_leave(p->h);
    return node;
}

static struct jinja_node *parse_and(struct jinja_parser *p)
{
    struct jinja_node *left = parse_not(p);
    while (!jinja_failed(p->h) && jinja_skip_name(p, "and"))
        left = with_parts(p, JINJA_N_AND, left, parse_not(p));
    return left;
}

static struct jinja_node *parse_or(struct jinja_parser *p)
{
    struct jinja_node *left = parse_and(p);
    while (!jinja_failed(p->h) && jinja_skip_name(p, "or"))
        left = with_parts(p, JINJA_N_OR, left, parse_and(p));
    return left;
}

struct jinja_node *jinja_parse_expr(struct jinja_parser *p, bool with_if)
{
    if (!jinja_enter(p->h))
        return jinja_node_new(p, JINJA_N_CONST);
    struct jinja_node *node = parse_or(p);
    while (with_if && !jinja_failed(p->h) && jinja_skip_name(p, "if")) {
        node = with_parts(p, JINJA_N_IF_ELSE, node, parse_or(p));
        if (jinja_skip_name(p, "else"))
            node->c = jinja_parse_expr(p, true);
    }
    jinja_leave(p->h);
    return node;
}

/* ---- tuples and targets ---- */

static bool at_tuple_end(struct jinja_parser *p, const char *end)
{
    const struct jinja_token *token = jinja_peek(p);
    return token->kind == JINJA_T_VAR_END || token->kind == JINJA_T_BLOCK_END ||
           jinja_at_op(p, ')') || (end != NULL && jinja_at_name(p, end));
}

struct jinja_node *jinja_parse_tuple(struct jinja_parser *p, bool with_if, const char *end)
{
    struct jinja_node *first = jinja_parse_expr(p, with_if), **tail = &first->next;
    if (!jinja_at_op(p, ','))
        return first;
    while (!jinja_failed(p->h) && jinja_skip_op(p, ',') && !at_tuple_end(p, end)) {
        *tail = jinja_parse_expr(p, with_if);
        tail = &(*tail)->next;
    }
    return with_parts(p, JINJA_N_TUPLE, first, NULL);
}

/* A name, name.attribute, or names in brackets. */
static struct jinja_node *parse_one_target(struct jinja_parser *p, bool with_attr)
{
    if (jinja_skip_op(p, '(')) {
        struct jinja_node *inner = jinja_parse_target(p, NULL, with_attr);
        jinja_expect_op(p, ')');
        return inner;
    }
    struct jinja_node *node = jinja_node_new(p, JINJA_N_NAME);
    node->name = jinja_expect_name(p);
    if (jinja_str_is(node->name, "true") || jinja_str_is(node->name, "false") ||
        jinja_str_is(node->name, "none") || jinja_str_is(node->name, "loop"))
        node->flag = true;
    if (node->flag && !jinja_str_is(node->name, "loop"))
        jinja_syntax(p, "a constant cannot be assigned to");
    if (with_attr && jinja_skip_op(p, '.')) {
        node->kind = JINJA_N_NS_ATTR;
        node->value = jinja_of(jinja_expect_name(p));
    }
    return node;
}

struct jinja_node *jinja_parse_target(struct jinja_parser *p, const char *end, bool with_attr)
{
    if (!jinja_enter(p->h))
        return jinja_node_new(p, JINJA_N_NAME);
    struct jinja_node *first = parse_one_target(p, with_attr), **tail = &first->next;
    if (jinja_at_op(p, ',')) {
        while (!jinja_failed(p->h) && jinja_skip_op(p, ',') && !at_tuple_end(p, end) &&
               !jinja_at_op(p, '=')) {
            *tail = parse_one_target(p, with_attr);
            tail = &(*tail)->next;
        }
        first = with_parts(p, JINJA_N_TUPLE, first, NULL);
    }
    jinja_leave(p->h);
    return first;
}
