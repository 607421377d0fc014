/*
 * grammar.c - grammars as the public functions have them, and where a text stands in one. A grammar
 * owns its program and, behind a lock, the machine that keeps what was found of its states. It does
 * not know what its tree was read from.
 *
 * Invariant: a state's set is settled, and leaves its floor only where the stack is empty: then and
 * only then the text may end.
 */
#include "text/grammar/grammar.h"

#include "base/lock.h"
#include "base/mem.h"
#include "text/grammar/grammar_machine.h"

#define STACK_MAX (1u << 20) /* nested calls of one text */
#define CHUNK 64             /* bytes between settlings */
#define TRIGGER_MAX 4096     /* bytes of one */

struct pith_grammar {
    const struct pi_vocab *vocab;  /* borrowed until the grammar is freed */
    const struct vocab_tree *tree; /* the vocabulary's */
    struct grammar_program program;
    struct grammar_machine machine; /* guarded by lock */
    struct pi_lock lock;
    bool has_lock;
    bool again, keeps_trigger;
    char **trigger; /* [n_trigger] terminated copies, owned */
    int32_t n_trigger, n_first;
    size_t trigger_len;              /* of the longest */
    uint64_t *end;                   /* [n_word] tokens that end a text, owned */
    int32_t marker[GRAMMAR_MARKERS]; /* [n_marker] control tokens that count as their text */
    int32_t n_marker;
    struct pith_grammar *other; /* a text may be of this one instead; NULL: none; owned */
};

struct pith_grammar_state {
    struct pith_grammar *g; /* borrowed until the state is freed */
    uint32_t set;
    uint32_t *stack; /* [cap] frames to return to, owned */
    uint32_t n_stack, cap;
    bool can_end, must_end; /* of set and stack */
    bool is_free;           /* awaits a trigger */
    bool has_ended;         /* by an end token */
    char *tail;             /* [trigger_len] the last bytes of free text, owned */
    size_t n_tail;
    size_t n_free, n_lead;            /* bytes of free text, and white space that it began with */
    struct pith_grammar_state *other; /* the place in g->other; NULL: it is not of that; owned */
};

void pith_grammar_params_default(pith_grammar_params *out)
{
    *out = (pith_grammar_params){0};
}

/* ---- grammars ---- */

static pith_status copy_triggers(struct pith_grammar *g, const pith_grammar_params *p,
                                 pith_error *err)
{
    if (p->n_trigger < 0 || (p->n_trigger > 0 && p->trigger == NULL))
        return pi_fail(err, PITH_INVALID, "n_trigger: %d triggers without a list", p->n_trigger);
    if (p->n_trigger_first < 0 || p->n_trigger_first > p->n_trigger)
        return pi_fail(err, PITH_INVALID, "n_trigger_first: %d is not between 0 and %d",
                       p->n_trigger_first, p->n_trigger);
    g->n_first = p->n_trigger_first;
    g->keeps_trigger = p->keeps_trigger;
    g->trigger = pi_mem_alloc_n(PI_MEM_OTHER, (size_t)p->n_trigger, sizeof(*g->trigger));
    if (g->trigger == NULL)
        return pi_fail(err, PITH_NOMEM, "no memory for %d triggers", p->n_trigger);
    for (int32_t i = 0; i < p->n_trigger; i++) {
        size_t len = p->trigger[i] != NULL ? strlen(p->trigger[i]) : 0;
        if (len == 0 || len > TRIGGER_MAX)
            return pi_fail(err, PITH_INVALID, "trigger[%d]: %zu bytes are not 1 to %d", i, len,
                           TRIGGER_MAX);
        g->trigger[i] = pi_mem_strndup(PI_MEM_OTHER, p->trigger[i], len);
        if (g->trigger[i] == NULL)
            return pi_fail(err, PITH_NOMEM, "no memory for a trigger of %zu bytes", len);
        g->n_trigger = i + 1;
        g->trigger_len = len > g->trigger_len ? len : g->trigger_len;
    }
    return PITH_OK;
}

static pith_status find_end_tokens(struct pith_grammar *g, pith_error *err)
{
    g->end = pi_mem_alloc_n(PI_MEM_OTHER, (size_t)g->tree->n_word, sizeof(*g->end));
    if (g->end == NULL)
        return pi_fail(err, PITH_NOMEM, "no memory for a grammar of %d tokens", g->tree->n_token);
    for (int32_t id = 0; id < g->tree->n_token; id++)
        if (pi_vocab_is_end(g->vocab, id))
            g->end[id / 64] |= UINT64_C(1) << (id % 64);
    return PITH_OK;
}

static pith_status failure(const struct pith_grammar *g, pith_error *err)
{
    pith_status status = g->machine.status;
    if (status == PITH_UNSUPPORTED)
        return pi_fail(err, status, "grammar: it is so ambiguous that its %u states pass a limit",
                       g->machine.n_set);
    return pi_fail(err, status, "no memory for a grammar's %u states", g->machine.n_set);
}

static pith_status fill(struct pith_grammar *g, struct grammar_tree *tree,
                        const pith_grammar_params *p, pith_error *err)
{
    PI_TRY(pi_vocab_tree(g->vocab, &g->tree, err));
    PI_TRY(copy_triggers(g, p, err));
    PI_TRY(find_end_tokens(g, err));
    PI_TRY(grammar_compile(tree, &g->program, err));
    PI_TRY(pi_lock_init(&g->lock, err));
    g->has_lock = true;
    pith_status status = grammar_machine_init(&g->machine, &g->program, g->tree);
    if (status != PITH_OK)
        return pi_fail(err, status, "no memory for a grammar of %u nodes", g->program.n_node);
    grammar_begin(&g->machine); /* where a text cannot even begin, it is said now */
    return g->machine.status == PITH_OK ? PITH_OK : failure(g, err);
}

pith_status pi_grammar_create(const struct pi_vocab *vocab, struct grammar_tree *tree,
                              const pith_grammar_params *params, pith_grammar **out,
                              pith_error *err)
{
    if (jinja_failed(&tree->heap))
        return grammar_tree_failure(tree, err);
    struct pith_grammar *g = pi_mem_alloc(PI_MEM_OTHER, sizeof(*g));
    if (g == NULL)
        return pi_fail(err, PITH_NOMEM, "no memory for a grammar");
    g->vocab = vocab;
    g->again = params->again;
    pith_status status = fill(g, tree, params, err);
    if (status == PITH_OK)
        *out = g;
    else
        pith_grammar_free(g);
    return status;
}

void pith_grammar_free(pith_grammar *g)
{
    if (g == NULL)
        return;
    grammar_machine_free(&g->machine);
    grammar_program_free(&g->program);
    if (g->has_lock)
        pi_lock_destroy(&g->lock);
    for (int32_t i = 0; i < g->n_trigger; i++)
        pi_mem_free(g->trigger[i]);
    pi_mem_free(g->trigger);
    pi_mem_free(g->end);
    pith_grammar_free(g->other); /* which has none */
    pi_mem_free(g);
}

static bool is_marker(const pith_grammar *g, int32_t token)
{
    bool is = false;
    for (int32_t i = 0; i < g->n_marker; i++)
        is = is || g->marker[i] == token;
    return is;
}

void pi_grammar_or(pith_grammar *g, pith_grammar *other)
{
    assert(g->n_trigger == 0 && other->n_trigger == 0 && other->other == NULL);
    g->other = other;
}

void pi_grammar_add_marker(pith_grammar *g, int32_t token)
{
    if (g->n_marker < GRAMMAR_MARKERS && !is_marker(g, token))
        g->marker[g->n_marker++] = token;
}

/* ---- where a text stands ---- */

static pith_status grow_stack(struct pith_grammar_state *s, uint32_t n, pith_error *err)
{
    uint32_t cap = s->cap > 0 ? s->cap : 64;
    while (cap < n)
        cap *= 2;
    if (n > STACK_MAX)
        return pi_fail(err, PITH_UNSUPPORTED, "grammar: the text nests deeper than %u", STACK_MAX);
    if (cap == s->cap)
        return PITH_OK;
    uint32_t *stack = pi_mem_grow(PI_MEM_OTHER, s->stack, cap, sizeof(*stack));
    if (stack == NULL)
        return pi_fail(err, PITH_NOMEM, "no memory for a stack of %u calls", cap);
    s->stack = stack;
    s->cap = cap;
    return PITH_OK;
}

/* Takes a set and what is left of the stack as the text's place. The grammar is locked. */
static pith_status move_to(struct pith_grammar_state *s, uint32_t set, uint32_t n_stack,
                           pith_error *err)
{
    struct grammar_machine *m = &s->g->machine;
    uint32_t n = GRAMMAR_MOVE_MAX;
    while (n == GRAMMAR_MOVE_MAX) {
        PI_TRY(grow_stack(s, n_stack + GRAMMAR_MOVE_MAX, err));
        set = grammar_settle(m, set, s->stack + n_stack, GRAMMAR_MOVE_MAX, &n);
        n_stack += n;
    }
    if (m->status != PITH_OK)
        return failure(s->g, err);
    s->set = set;
    s->n_stack = n_stack;
    s->can_end = n_stack == 0 && m->set[set].leaves;
    s->must_end = s->can_end && m->set[set].n == 0;
    return PITH_OK;
}

static pith_status begin(struct pith_grammar_state *s, pith_error *err)
{
    return move_to(s, grammar_begin(&s->g->machine), 0, err);
}

/* Few bytes; the stack above what is left is not touched before all of them are taken. */
static pith_status advance(struct pith_grammar_state *s, const char *bytes, size_t len,
                           pith_error *err)
{
    struct grammar_machine *m = &s->g->machine;
    uint32_t set = s->set, n_stack = s->n_stack;
    m->work = 0;
    for (size_t i = 0; i < len; i++) {
        set = grammar_step(m, set, (uint8_t)bytes[i]);
        while (m->set[set].leaves && n_stack > 0)
            set = grammar_join(m, set, s->stack[--n_stack]);
        if (m->status != PITH_OK)
            return failure(s->g, err);
        if (set == GRAMMAR_SET_DEAD)
            return pi_fail(err, PITH_INVALID, "grammar: byte 0x%02x is not allowed here",
                           (uint8_t)bytes[i]);
    }
    return move_to(s, set, n_stack, err);
}

/* ---- triggers ---- */

/* Appends a byte of free text; the trigger that ends with it, or NULL. */
static const char *push_tail(struct pith_grammar_state *s, char byte)
{
    const struct pith_grammar *g = s->g;
    s->n_lead += s->n_lead == s->n_free && strchr(" \t\r\n", byte) != NULL && byte != '\0';
    s->n_free++;
    if (s->n_tail == g->trigger_len)
        memmove(s->tail, s->tail + 1, --s->n_tail);
    s->tail[s->n_tail++] = byte;
    for (int32_t i = 0; i < g->n_trigger; i++) {
        size_t len = strlen(g->trigger[i]);
        bool ends = len <= s->n_tail && memcmp(s->tail + s->n_tail - len, g->trigger[i], len) == 0;
        if (ends && (i >= g->n_first || s->n_free - len <= s->n_lead))
            return g->trigger[i];
    }
    return NULL;
}

/* The text is the grammar's from the trigger on, or from behind it. */
static pith_status begin_behind(struct pith_grammar_state *s, const char *trigger, pith_error *err)
{
    size_t len = s->g->keeps_trigger ? strlen(trigger) : 0;
    s->is_free = false;
    s->n_tail = 0;
    PI_TRY(begin(s, err));
    for (size_t i = 0; i < len; i += CHUNK)
        PI_TRY(advance(s, trigger + i, len - i < CHUNK ? len - i : CHUNK, err));
    return PITH_OK;
}

static pith_status take(struct pith_grammar_state *s, const char *bytes, size_t len,
                        pith_error *err)
{
    for (size_t i = 0; i < len;) {
        if (s->is_free) {
            const char *trigger = push_tail(s, bytes[i++]);
            if (trigger != NULL)
                PI_TRY(begin_behind(s, trigger, err));
            continue;
        }
        size_t n = len - i < CHUNK ? len - i : CHUNK;
        if (s->g->again && s->g->n_trigger > 0) /* it can end behind any */
            n = 1;
        PI_TRY(advance(s, bytes + i, n, err));
        i += n;
        if (s->must_end && s->g->again && s->g->n_trigger > 0)
            s->is_free = true;
    }
    return PITH_OK;
}

/* The parts of a state that come back where bytes were not taken. */
struct before {
    struct pith_grammar_state state;
    uint32_t *stack;
    char tail[TRIGGER_MAX];
};

static pith_status keep(const struct pith_grammar_state *s, struct before *old, pith_error *err)
{
    old->state = *s;
    old->stack = pi_mem_alloc_n(PI_MEM_OTHER, s->n_stack + 1, sizeof(*old->stack));
    if (old->stack == NULL)
        return pi_fail(err, PITH_NOMEM, "no memory for a stack of %u calls", s->n_stack);
    memcpy(old->stack, s->stack, s->n_stack * sizeof(*old->stack));
    memcpy(old->tail, s->tail, s->n_tail);
    return PITH_OK;
}

static void put_back(struct pith_grammar_state *s, const struct before *old)
{
    uint32_t *stack = s->stack, cap = s->cap; /* they may have grown */
    *s = old->state;
    s->stack = stack;
    s->cap = cap;
    memcpy(s->stack, old->stack, s->n_stack * sizeof(*stack));
    memcpy(s->tail, old->tail, s->n_tail);
}

/* As take, but nothing has changed where it fails, or where the bytes are only tried. */
static pith_status take_or_not(struct pith_grammar_state *s, const char *bytes, size_t len,
                               bool only_try, pith_error *err)
{
    struct before old;
    if (!only_try && !s->is_free && len <= CHUNK && s->g->n_trigger == 0)
        return take(s, bytes, len, err);
    PI_TRY(keep(s, &old, err));
    pith_status status = take(s, bytes, len, err);
    if (status != PITH_OK || only_try)
        put_back(s, &old);
    pi_mem_free(old.stack);
    return status;
}

/* ---- the public functions ---- */

pith_status pith_grammar_state_create(const pith_grammar *grammar, pith_grammar_state **out,
                                      pith_error *err)
{
    struct pith_grammar *g = (struct pith_grammar *)grammar; /* what it learns is behind its lock */
    struct pith_grammar_state *s = pi_mem_alloc(PI_MEM_OTHER, sizeof(*s));
    if (s == NULL || (s->tail = pi_mem_alloc(PI_MEM_OTHER, g->trigger_len + 1)) == NULL) {
        pi_mem_free(s);
        return pi_fail(err, PITH_NOMEM, "no memory for a grammar's state");
    }
    s->g = g;
    pi_lock_take(&g->lock);
    pith_status status = begin(s, err);
    pi_lock_give(&g->lock);
    s->is_free = g->n_trigger > 0;
    if (status == PITH_OK && g->other != NULL)
        status = pith_grammar_state_create(g->other, &s->other, err);
    if (status == PITH_OK)
        *out = s;
    else
        pith_grammar_state_free(s);
    return status;
}

void pith_grammar_state_free(pith_grammar_state *state)
{
    if (state == NULL)
        return;
    pith_grammar_state_free(state->other); /* which has none */
    pi_mem_free(state->stack);
    pi_mem_free(state->tail);
    pi_mem_free(state);
}

/* The text is of the other grammar from its beginning. */
static void become_other(pith_grammar_state *s)
{
    struct pith_grammar_state *other = s->other;
    pi_mem_free(s->stack);
    pi_mem_free(s->tail);
    *s = *other;
    pi_mem_free(other);
}

static pith_status accept_token(pith_grammar_state *s, int32_t token, bool only_try,
                                pith_error *err);

/* Sets the bits of tokens that the state's own grammar allows, outside of free text. */
static pith_status add_mask(pith_grammar_state *s, uint64_t *bits, pith_error *err)
{
    struct pith_grammar *g = s->g;
    for (int32_t i = 0; s->can_end && i < g->tree->n_word; i++)
        bits[i] |= g->end[i];
    if (s->must_end)
        return PITH_OK;
    pi_lock_take(&g->lock);
    pith_status status = grammar_tokens(&g->machine, s->set, s->stack, s->n_stack, bits);
    if (status != PITH_OK)
        failure(g, err);
    pi_lock_give(&g->lock);
    for (int32_t i = 0; status == PITH_OK && i < g->n_marker; i++)
        if (accept_token(s, g->marker[i], true, NULL) == PITH_OK)
            bits[g->marker[i] / 64] |= UINT64_C(1) << (g->marker[i] % 64);
    return status;
}

pith_status pith_grammar_state_mask(pith_grammar_state *s, uint64_t *bits, pith_error *err)
{
    struct pith_grammar *g = s->g;
    int32_t n_word = g->tree->n_word;
    memset(bits, s->is_free && !s->has_ended ? 0xff : 0, (size_t)n_word * sizeof(*bits));
    if (s->has_ended)
        return PITH_OK;
    if (s->is_free) {
        if (g->tree->n_token % 64 != 0)
            bits[n_word - 1] = (UINT64_C(1) << (g->tree->n_token % 64)) - 1;
        return PITH_OK;
    }
    PI_TRY(add_mask(s, bits, err));
    return s->other != NULL ? add_mask(s->other, bits, err) : PITH_OK;
}

/* By the state's own grammar. */
static pith_status accept_own(pith_grammar_state *s, const char *bytes, size_t len, bool only_try,
                              pith_error *err)
{
    pi_lock_take(&s->g->lock);
    pith_status status = take_or_not(s, bytes, len, only_try, err);
    pi_lock_give(&s->g->lock);
    return status;
}

/* By either of two grammars, and from then on by those that did. */
static pith_status accept_bytes(pith_grammar_state *s, const char *bytes, size_t len, bool only_try,
                                pith_error *err)
{
    if (s->has_ended)
        return pi_fail(err, PITH_INVALID, "grammar: the text has ended");
    if (s->other == NULL)
        return accept_own(s, bytes, len, only_try, err);
    pith_error why[2];
    pith_status status = accept_own(s, bytes, len, only_try, &why[0]);
    pith_status other = accept_own(s->other, bytes, len, only_try, &why[1]);
    if (status != PITH_OK && (status != PITH_INVALID || other == PITH_INVALID))
        return pi_fail(err, status, "%s", why[0].message);
    if (other != PITH_OK && other != PITH_INVALID)
        return pi_fail(err, other, "%s", why[1].message);
    if (!only_try && other != PITH_OK) {
        pith_grammar_state_free(s->other);
        s->other = NULL;
    } else if (!only_try && status != PITH_OK) {
        become_other(s);
    }
    return PITH_OK;
}

pith_status pith_grammar_state_accept_bytes(pith_grammar_state *s, const char *bytes, size_t len,
                                            pith_error *err)
{
    return accept_bytes(s, bytes, len, false, err);
}

/* A token that does not end the text. In free text control tokens count as their text, which may
   be a trigger. */
static pith_status accept_token(pith_grammar_state *s, int32_t token, bool only_try,
                                pith_error *err)
{
    const struct pi_vocab *v = s->g->vocab;
    char small[256], *bytes = small;
    size_t len;
    bool special = s->is_free || is_marker(s->g, token);
    pith_status status = pi_vocab_token_bytes(v, token, special, bytes, sizeof(small), &len);
    if (status == PITH_RANGE) {
        bytes = pi_mem_alloc(PI_MEM_OTHER, len);
        if (bytes == NULL)
            return pi_fail(err, PITH_NOMEM, "no memory for a token of %zu bytes", len);
        status = pi_vocab_token_bytes(v, token, special, bytes, len, &len);
    }
    if (status != PITH_OK || (len == 0 && !s->is_free))
        status = pi_fail(err, PITH_INVALID, "grammar: token %d is not allowed here", token);
    else
        status = accept_bytes(s, bytes, len, only_try, err);
    if (bytes != small)
        pi_mem_free(bytes);
    return status;
}

pith_status pith_grammar_state_accept(pith_grammar_state *s, int32_t token, pith_error *err)
{
    if (!pi_vocab_is_end(s->g->vocab, token))
        return accept_token(s, token, false, err);
    if (!pith_grammar_state_can_end(s))
        return pi_fail(err, PITH_INVALID, "grammar: the text may not end here");
    s->has_ended = true;
    return PITH_OK;
}

bool pi_grammar_state_allows(pith_grammar_state *s, int32_t token)
{
    return pi_vocab_is_end(s->g->vocab, token) || accept_token(s, token, true, NULL) == PITH_OK;
}

bool pith_grammar_state_can_end(const pith_grammar_state *state)
{
    return state->is_free || state->has_ended || state->can_end ||
           (state->other != NULL && state->other->can_end);
}

bool pith_grammar_state_must_end(const pith_grammar_state *state)
{
    return state->has_ended ||
           (!state->is_free && state->must_end && (state->other == NULL || state->other->must_end));
}

/* ---- questions of a sampler ---- */

int32_t pi_grammar_n_vocab(const pith_grammar *g)
{
    return g->tree->n_token;
}

bool pi_grammar_state_is_free(const pith_grammar_state *state)
{
    return state->is_free;
}

bool pi_grammar_state_is_open(const pith_grammar_state *state)
{
    return state->other != NULL && !state->has_ended;
}

bool pi_grammar_state_allows_first(pith_grammar_state *s, int32_t token)
{
    struct pith_grammar_state *other = s->other;
    if (pi_vocab_is_end(s->g->vocab, token))
        return s->can_end;
    s->other = NULL;
    bool allows = accept_token(s, token, true, NULL) == PITH_OK;
    s->other = other;
    return allows;
}

void pi_grammar_state_take_other(pith_grammar_state *state)
{
    if (pi_grammar_state_is_open(state))
        become_other(state);
}

pith_status pi_grammar_state_mask_other(pith_grammar_state *state, uint64_t *bits, pith_error *err)
{
    return pith_grammar_state_mask(state->other, bits, err);
}
