/*
 * pickle.c - a stack machine that builds values and calls nothing. It knows the opcodes that Python
 * writes for dictionaries, lists, tuples, texts and numbers, and of calls the two that PyTorch
 * writes for a tensor (torch._utils._rebuild_tensor_v2, collections.OrderedDict), whose meaning is
 * written down here. Any other opcode, class or call is refused by name.
 *
 * Invariant: every opcode makes at most one node and one place on the stack, and a cell takes a
 * place off it, so memory is bounded by the size of the pickle; lists are walked by those who know
 * what they look for, never as deep as they go.
 */
#include "policy/keep/pickle.h"

#include "base/mem.h"

#define MARK (-2)

static const char *const names[] = {
    [PICKLE_REBUILD_TENSOR] = "torch._utils\n_rebuild_tensor_v2\n",
    [PICKLE_FLOAT_STORAGE] = "torch\nFloatStorage\n",
    [PICKLE_ORDERED_DICT] = "collections\nOrderedDict\n",
};

/* The machine's place. */
struct reader {
    struct pickle *p;
    size_t at;
    pith_error *err;
};

static pith_status damaged(const struct reader *r, const char *what)
{
    return pi_fail(r->err, PITH_FORMAT, "pickle, byte %zu: %s", r->at, what);
}

static pith_status no_memory(const struct reader *r)
{
    return pi_fail(r->err, PITH_NOMEM, "no memory to read a pickle of %zu bytes", r->p->size);
}

/* Room for one more in an array of *cap. */
static bool grow(void **array, int32_t n, int32_t *cap, size_t size)
{
    if (n < *cap)
        return true;
    int32_t wanted = *cap > 0 ? 2 * *cap : 256;
    void *more =
        *cap <= INT32_MAX / 4 ? pi_mem_grow(PI_MEM_OTHER, *array, (size_t)wanted, size) : NULL;
    if (more == NULL)
        return false;
    *array = more;
    *cap = wanted;
    return true;
}

static pith_status push(struct reader *r, int32_t node)
{
    struct pickle *p = r->p;
    void *stack = p->stack;
    if (!grow(&stack, p->n_stack, &p->cap_stack, sizeof(*p->stack)))
        return no_memory(r);
    p->stack = stack;
    p->stack[p->n_stack++] = node;
    return PITH_OK;
}

static pith_status push_new(struct reader *r, struct pickle_node node)
{
    struct pickle *p = r->p;
    void *nodes = p->node;
    if (!grow(&nodes, p->n_node, &p->cap_node, sizeof(*p->node)))
        return no_memory(r);
    p->node = nodes;
    node.first = node.last = -1;
    p->node[p->n_node] = node;
    return push(r, p->n_node++);
}

static pith_status push_value(struct reader *r, enum pickle_type type, int64_t value)
{
    return push_new(r, (struct pickle_node){.type = type, .value = value});
}

/* The top of the stack, which must be a value. */
static pith_status pop(struct reader *r, int32_t *node)
{
    struct pickle *p = r->p;
    if (p->n_stack == 0 || p->stack[p->n_stack - 1] == MARK)
        return damaged(r, "a value is missing");
    *node = p->stack[--p->n_stack];
    return PITH_OK;
}

static pith_status append(struct reader *r, int32_t list, int32_t node)
{
    struct pickle *p = r->p;
    void *cells = p->cell;
    if (!grow(&cells, p->n_cell, &p->cap_cell, sizeof(*p->cell)))
        return no_memory(r);
    p->cell = cells;
    p->cell[p->n_cell] = (struct pickle_cell){node, -1};
    struct pickle_node *to = &p->node[list];
    if (to->last >= 0)
        p->cell[to->last].next = p->n_cell;
    else
        to->first = p->n_cell;
    to->last = p->n_cell++;
    to->n++;
    return PITH_OK;
}

/* Where the values above the last mark begin. */
static pith_status find_mark(const struct reader *r, int32_t *begin)
{
    int32_t i = r->p->n_stack - 1;
    while (i >= 0 && r->p->stack[i] != MARK)
        i--;
    *begin = i + 1;
    return i >= 0 ? PITH_OK : damaged(r, "a mark is missing");
}

/* Moves the values from begin to the top, and the mark below them, into a list or dict. */
static pith_status take_values(struct reader *r, int32_t begin, int32_t n_mark, int32_t list)
{
    struct pickle *p = r->p;
    for (int32_t i = begin; i < p->n_stack; i++)
        PI_TRY(append(r, list, p->stack[i]));
    p->n_stack = begin - n_mark;
    return PITH_OK;
}

/* APPENDS and SETITEMS: everything above the mark goes into the container below it. */
static pith_status extend(struct reader *r, enum pickle_type type)
{
    struct pickle *p = r->p;
    int32_t begin;
    PI_TRY(find_mark(r, &begin));
    if (begin < 2 || p->stack[begin - 2] == MARK || p->node[p->stack[begin - 2]].type != type ||
        (type == PICKLE_DICT && (p->n_stack - begin) % 2 != 0))
        return damaged(r, "values for something that takes none");
    return take_values(r, begin, 1, p->stack[begin - 2]);
}

/* TUPLE1, TUPLE2, TUPLE3: the n values on top as one. */
static pith_status tuple(struct reader *r, int32_t n, bool to_mark)
{
    struct pickle *p = r->p;
    int32_t begin = p->n_stack - n;
    if (to_mark)
        PI_TRY(find_mark(r, &begin));
    else
        for (int32_t i = 0; i < n; i++)
            if (begin < 0 || p->stack[begin + i] == MARK)
                return damaged(r, "a tuple of values that are missing");
    PI_TRY(push_value(r, PICKLE_LIST, 0));
    int32_t list = p->stack[--p->n_stack];
    PI_TRY(take_values(r, begin, to_mark ? 1 : 0, list));
    return push(r, list);
}

/* ---- operands ---- */

static pith_status number(struct reader *r, size_t n_byte, uint64_t *value)
{
    const struct pickle *p = r->p;
    if (p->size - r->at < n_byte)
        return damaged(r, "the end comes within a number");
    *value = 0;
    for (size_t i = 0; i < n_byte; i++)
        *value |= (uint64_t)p->data[r->at + i] << (8 * i);
    r->at += n_byte;
    return PITH_OK;
}

static pith_status integer(struct reader *r, size_t n_byte)
{
    uint64_t value = 0;
    PI_TRY(number(r, n_byte, &value));
    return push_value(r, PICKLE_INT,
                      n_byte == 4 ? (int64_t)(int32_t)(uint32_t)value : (int64_t)value);
}

/* LONG1: two's complement of up to eight bytes. */
static pith_status long1(struct reader *r)
{
    uint64_t n = 0, value = 0;
    PI_TRY(number(r, 1, &n));
    if (n > 8)
        return damaged(r, "a number of more than 64 bits");
    PI_TRY(number(r, (size_t)n, &value));
    if (n > 0 && n < 8 && (value >> (8 * n - 1)) != 0)
        value |= ~(uint64_t)0 << (8 * n);
    int64_t signed_value;
    memcpy(&signed_value, &value, sizeof(value));
    return push_value(r, PICKLE_INT, signed_value);
}

static pith_status text(struct reader *r, size_t n_byte)
{
    uint64_t n = 0;
    PI_TRY(number(r, n_byte, &n));
    if (n > r->p->size - r->at || n > INT32_MAX)
        return damaged(r, "the end comes within a text");
    r->at += (size_t)n;
    return push_new(r, (struct pickle_node){.type = PICKLE_TEXT,
                                            .n = (int32_t)n,
                                            .value = (int64_t)(r->at - (size_t)n)});
}

static pith_status name(struct reader *r)
{
    const struct pickle *p = r->p;
    for (size_t i = 0; i < PI_LEN(names); i++) {
        size_t n = strlen(names[i]);
        if (n <= p->size - r->at && memcmp(p->data + r->at, names[i], n) == 0) {
            r->at += n;
            return push_value(r, PICKLE_NAME, (int64_t)i);
        }
    }
    char shown[61]; /* "module.name" */
    size_t n = 0;
    for (size_t at = r->at, n_line = 0; at < p->size && n + 1 < sizeof(shown); at++) {
        uint8_t c = p->data[at];
        if (c == '\n' && ++n_line == 2)
            break;
        shown[n++] = (char)(c == '\n' ? '.' : c > ' ' && c < 0x7f ? c : '?');
    }
    shown[n] = '\0';
    return pi_fail(r->err, PITH_UNSUPPORTED,
                   "pickle, byte %zu: \"%s\" is no class or function of a file of float tensors",
                   r->at, shown);
}

/* Protocol 2 numbers what it remembers from 0 on without gaps. */
static pith_status remember(struct reader *r, size_t n_byte)
{
    struct pickle *p = r->p;
    uint64_t id = 0;
    void *memo = p->memo;
    PI_TRY(number(r, n_byte, &id));
    if (p->n_stack == 0 || p->stack[p->n_stack - 1] == MARK || id > (uint64_t)p->n_memo)
        return damaged(r, "nothing to remember, or a number out of turn");
    if (!grow(&memo, p->n_memo, &p->cap_memo, sizeof(*p->memo)))
        return no_memory(r);
    p->memo = memo;
    p->memo[id] = p->stack[p->n_stack - 1];
    p->n_memo += id == (uint64_t)p->n_memo;
    return PITH_OK;
}

static pith_status recall(struct reader *r, size_t n_byte)
{
    uint64_t id = 0;
    PI_TRY(number(r, n_byte, &id));
    if (id >= (uint64_t)r->p->n_memo)
        return damaged(r, "something that was not remembered");
    return push(r, r->p->memo[id]);
}

/* ---- what PyTorch calls ---- */

/* The first n values of a list; false when it has fewer. */
static bool unpack(const struct pickle *p, int32_t list, int32_t n, int32_t *out)
{
    int32_t c = p->node[list].type == PICKLE_LIST ? p->node[list].first : -1;
    for (int32_t i = 0; i < n; i++, c = p->cell[c].next) {
        if (c < 0)
            return false;
        out[i] = p->cell[c].node;
    }
    return true;
}

/* A decimal text as a number. */
static bool text_number(const struct pickle *p, const struct pickle_node *node, int64_t *value)
{
    *value = 0;
    if (node->type != PICKLE_TEXT || node->n < 1 || node->n > 9)
        return false;
    for (int32_t i = 0; i < node->n; i++) {
        uint8_t c = p->data[node->value + i];
        if (c < '0' || c > '9')
            return false;
        *value = 10 * *value + (c - '0');
    }
    return true;
}

/* ("storage", FloatStorage, number as text, device, elements). */
static pith_status storage(struct reader *r)
{
    struct pickle *p = r->p;
    int32_t list = -1, v[5];
    int64_t number_of;
    PI_TRY(pop(r, &list));
    if (!unpack(p, list, 5, v) || !pickle_is_text(p, v[0], "storage") ||
        p->node[v[1]].type != PICKLE_NAME || p->node[v[1]].value != PICKLE_FLOAT_STORAGE ||
        !text_number(p, &p->node[v[2]], &number_of) || p->node[v[4]].type != PICKLE_INT ||
        p->node[v[4]].value < 0)
        return damaged(r, "a storage that is none of floats");
    return push_new(r, (struct pickle_node){
                           .type = PICKLE_STORAGE, .value = number_of, .len = p->node[v[4]].value});
}

/* (storage, offset, (length,), (1,), ...): one contiguous dimension, all that statistics have. */
static pith_status tensor(struct reader *r, int32_t args)
{
    struct pickle *p = r->p;
    int32_t v[4], size, stride;
    if (!unpack(p, args, 4, v) || p->node[v[0]].type != PICKLE_STORAGE ||
        p->node[v[1]].type != PICKLE_INT || !unpack(p, v[2], 1, &size) ||
        !unpack(p, v[3], 1, &stride) || p->node[v[2]].n != 1 || p->node[size].type != PICKLE_INT ||
        p->node[stride].type != PICKLE_INT || p->node[stride].value != 1)
        return damaged(r, "a tensor that is no contiguous row of floats");
    const struct pickle_node *s = &p->node[v[0]];
    int64_t offset = p->node[v[1]].value, len = p->node[size].value;
    if (offset < 0 || len < 0 || offset > s->len || len > s->len - offset)
        return damaged(r, "a tensor that reaches beyond its storage");
    return push_new(r, (struct pickle_node){
                           .type = PICKLE_TENSOR, .value = s->value, .offset = offset, .len = len});
}

static pith_status call(struct reader *r)
{
    struct pickle *p = r->p;
    int32_t args = -1, callee = -1;
    PI_TRY(pop(r, &args));
    PI_TRY(pop(r, &callee));
    if (p->node[callee].type == PICKLE_NAME && p->node[callee].value == PICKLE_REBUILD_TENSOR)
        return tensor(r, args);
    if (p->node[callee].type == PICKLE_NAME && p->node[callee].value == PICKLE_ORDERED_DICT &&
        p->node[args].type == PICKLE_LIST && p->node[args].n == 0)
        return push_value(r, PICKLE_DICT, 0);
    return damaged(r, "a call of something that Pith does not know");
}

/* ---- the machine ---- */

/* One opcode; *done after STOP. As long as the list of opcodes that are read. */
static pith_status step(struct reader *r, bool *done)
{
    uint64_t skipped = 0;
    size_t at = r->at;
    uint8_t op = r->p->data[r->at++];
    switch (op) {
    case 0x80:
        return number(r, 1, &skipped); /* PROTO */
    case '.':
        *done = true;
        return PITH_OK;
    case '(':
        return push(r, MARK);
    case '}':
        return push_value(r, PICKLE_DICT, 0);
    case ']':
        return push_value(r, PICKLE_LIST, 0);
    case ')':
        return push_value(r, PICKLE_LIST, 0); /* EMPTY_TUPLE */
    case 't':
        return tuple(r, 0, true);
    case 0x85:
        return tuple(r, 1, false);
    case 0x86:
        return tuple(r, 2, false);
    case 0x87:
        return tuple(r, 3, false);
    case 'e':
        return extend(r, PICKLE_LIST);
    case 'u':
        return extend(r, PICKLE_DICT);
    case 'N':
        return push_value(r, PICKLE_NONE, 0);
    case 0x88:
        return push_value(r, PICKLE_BOOL, 1);
    case 0x89:
        return push_value(r, PICKLE_BOOL, 0);
    case 'K':
        return integer(r, 1);
    case 'M':
        return integer(r, 2);
    case 'J':
        return integer(r, 4);
    case 0x8a:
        return long1(r);
    case 'G': /* BINFLOAT: no number with a fraction matters here */
        PI_TRY(number(r, 8, &skipped));
        return push_value(r, PICKLE_FLOAT, 0);
    case 'X':
        return text(r, 4);
    case 'c':
        return name(r);
    case 'q':
        return remember(r, 1);
    case 'r':
        return remember(r, 4);
    case 'h':
        return recall(r, 1);
    case 'j':
        return recall(r, 4);
    case 'Q':
        return storage(r);
    case 'R':
        return call(r);
    default:
        break;
    }
    /* APPEND and SETITEM: one value, or a key and its value, without a mark. */
    if (op == 'a' || op == 's') {
        struct pickle *p = r->p;
        int32_t n = op == 'a' ? 1 : 2, v[3];
        for (int32_t i = n; i >= 0; i--)
            PI_TRY(pop(r, &v[i]));
        if (p->node[v[0]].type != (op == 'a' ? PICKLE_LIST : PICKLE_DICT))
            return damaged(r, "a value for something that takes none");
        for (int32_t i = 1; i <= n; i++)
            PI_TRY(append(r, v[0], v[i]));
        return push(r, v[0]);
    }
    return pi_fail(r->err, PITH_UNSUPPORTED,
                   "pickle, byte %zu: opcode 0x%02x is none that a file of tensors needs", at, op);
}

pith_status pickle_parse(struct pickle *p, const uint8_t *data, size_t size, pith_error *err)
{
    struct reader r = {.p = p, .err = err};
    bool done = false;
    p->data = data;
    p->size = size;
    while (!done) {
        if (r.at >= size)
            return damaged(&r, "the end comes before the pickle's");
        PI_TRY(step(&r, &done));
    }
    PI_TRY(pop(&r, &p->root));
    return PITH_OK;
}

void pickle_free(struct pickle *p)
{
    pi_mem_free(p->node);
    pi_mem_free(p->cell);
    pi_mem_free(p->stack);
    pi_mem_free(p->memo);
    *p = (struct pickle){0};
}

bool pickle_is_text(const struct pickle *p, int32_t node, const char *wanted)
{
    const struct pickle_node *n = node >= 0 ? &p->node[node] : NULL;
    return n != NULL && n->type == PICKLE_TEXT && (size_t)n->n == strlen(wanted) &&
           memcmp(p->data + n->value, wanted, (size_t)n->n) == 0;
}

int32_t pickle_get(const struct pickle *p, int32_t node, const char *key)
{
    if (node < 0 || p->node[node].type != PICKLE_DICT)
        return -1;
    for (int32_t c = p->node[node].first; c >= 0;) {
        int32_t value = p->cell[c].next; /* pairs: extend and SETITEM append nothing else */
        if (pickle_is_text(p, p->cell[c].node, key))
            return p->cell[value].node;
        c = p->cell[value].next;
    }
    return -1;
}
