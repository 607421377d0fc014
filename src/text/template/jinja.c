/*
 * jinja.c - a template's life: parsed once, rendered often. The tree is never written to after
 * parsing; a run has a heap of its own.
 */
#include "text/template/jinja.h"

#include "base/mem.h"
#include "text/template/jinja_run.h"

#define TEMPLATE_MAX                                                                               \
    ((size_t)4                                                                                     \
     << 20) /* bytes of a template's text; real ones have 20 thousand                    \
                       */

struct jinja_template {
    struct jinja_heap heap;
    struct jinja_tree tree;
};

pith_status jinja_template_parse(const char *text, size_t len, struct jinja_template **out,
                                 pith_error *err)
{
    struct jinja_limits limits;
    if (len > TEMPLATE_MAX)
        return pi_fail(err, PITH_UNSUPPORTED, "chat template: %zu bytes are above the limit of %zu",
                       len, TEMPLATE_MAX);
    struct jinja_template *t = pi_mem_alloc(PI_MEM_MODEL, sizeof(*t));
    if (t == NULL)
        return pi_fail(err, PITH_NOMEM, "no memory for a chat template");
    jinja_limits_default(&limits);
    jinja_heap_init(&t->heap, &limits);
    t->tree = jinja_parse(&t->heap, text, len);
    if (!jinja_failed(&t->heap)) {
        *out = t;
        return PITH_OK;
    }
    pith_status status = t->heap.err.status == PITH_INVALID ? PITH_UNSUPPORTED : t->heap.err.status;
    pi_fail(err, status, "%s", t->heap.err.message);
    jinja_template_free(t);
    return status;
}

void jinja_template_free(struct jinja_template *t)
{
    if (t == NULL)
        return;
    jinja_heap_free(&t->heap);
    pi_mem_free(t);
}

void jinja_text_free(struct jinja_text *text)
{
    pi_mem_free(text->data);
    pi_mem_free(text->user);
    *text = (struct jinja_text){0};
}

/* Out of the heap, which goes. */
static bool take_text(const struct jinja_buf *b, struct jinja_text *out)
{
    out->len = b->len;
    out->from_user = b->from_user;
    out->data = pi_mem_alloc(PI_MEM_OTHER, b->len + 1);
    if (out->data != NULL && b->len > 0)
        memcpy(out->data, b->data, b->len);
    if (out->data == NULL || b->user == NULL)
        return out->data != NULL;
    out->user = pi_mem_alloc(PI_MEM_OTHER, b->len);
    if (out->user != NULL)
        memcpy(out->user, b->user, b->len);
    return out->user != NULL;
}

pith_status jinja_render(const struct jinja_template *t, jinja_fill_fn *fill, void *user,
                         const struct jinja_given *given, struct jinja_text *out, pith_error *err)
{
    struct jinja_heap h;
    struct jinja_limits limits;
    struct jinja_text text = {0};
    jinja_limits_default(&limits);
    jinja_heap_init(&h, given->limits != NULL ? given->limits : &limits);
    struct jinja_buf b = {.h = &h, .limit = h.limits.output};
    struct jinja_run r = {.h = &h, .names = t->tree.names, .out = &b};
    r.now = given->now != NULL ? given->now : given->call_now;
    r.has_clock = given->now != NULL;
    r.globals = jinja_dict_new(&h);
    r.scope = jinja_scope_new(&r, NULL);
    if (!jinja_failed(&h))
        fill(user, &h, r.globals);
    if (!jinja_failed(&h))
        jinja_exec(&r, t->tree.body);
    if (!jinja_failed(&h) && !take_text(&b, &text))
        jinja_fail(&h, PITH_NOMEM, "no memory for a prompt of %zu bytes", b.len);
    pith_status status = h.err.status;
    if (status != PITH_OK) {
        jinja_text_free(&text);
        pi_fail(err, status, "%s", h.err.message);
    } else {
        text.asked_thinking = r.asked_thinking;
        *out = text;
    }
    jinja_heap_free(&h);
    return status;
}
