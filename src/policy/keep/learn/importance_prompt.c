/*
 * importance_prompt.c - renders the request to repeat a text once, with a mark in the text's place,
 * and tokenizes what is around the mark. It knows no template: rendering is text/template/chat.c's.
 */
#include "policy/keep/learn/importance_prompt.h"

#include "base/mem.h"

#define MARK "<<<TEXT>>>"
#define REQUEST "\n\nRepeat the previous context exactly."
#define PLAIN MARK REQUEST "\n\n"

static pith_status plain(char **out, pith_error *err)
{
    *out = pi_mem_strndup(PI_MEM_OTHER, PLAIN, strlen(PLAIN));
    return *out != NULL ? PITH_OK : pi_fail(err, PITH_NOMEM, "no memory for a prompt");
}

/* The rendered request, terminated; the caller frees. */
static pith_status render(const struct pith_model *model, char **out, pith_error *err)
{
    const pith_message message = {"user", MARK REQUEST};
    size_t len = 0;
    *out = NULL;
    pith_status status =
        pith_chat_render(model, NULL, &message, 1, PITH_CHAT_GENERATE, NULL, 0, &len, err);
    if (status == PITH_UNSUPPORTED) /* no template, or one that is not understood */
        return plain(out, err);
    if (status != PITH_OK && status != PITH_RANGE)
        return status;
    *out = pi_mem_alloc(PI_MEM_OTHER, len + 1);
    if (*out == NULL)
        return pi_fail(err, PITH_NOMEM, "no memory for a prompt");
    PI_TRY(pith_chat_render(model, NULL, &message, 1, PITH_CHAT_GENERATE, *out, len, &len, err));
    if (strstr(*out, MARK) != NULL)
        return PITH_OK;
    pi_mem_free(*out); /* a template that changes what users say */
    return plain(out, err);
}

static pith_status tokenize(const struct pith_model *model, const char *text, size_t len,
                            uint32_t flags, int32_t **out, int32_t *n, pith_error *err)
{
    pith_status status = pith_tokenize(model, text, len, flags, NULL, 0, n, err);
    if (status != PITH_OK && status != PITH_RANGE)
        return status;
    *out = pi_mem_alloc_n(PI_MEM_OTHER, (size_t)*n, sizeof(**out));
    if (*out == NULL)
        return pi_fail(err, PITH_NOMEM, "no memory for the tokens of a prompt");
    return *n > 0 ? pith_tokenize(model, text, len, flags, *out, *n, n, err) : PITH_OK;
}

static pith_status split(const struct pith_model *model, const char *text,
                         struct importance_prompt *p, pith_error *err)
{
    const char *mark = strstr(text, MARK);
    assert(mark != NULL);
    const char *rest = mark + strlen(MARK);
    PI_TRY(tokenize(model, text, (size_t)(mark - text), PITH_TOKENIZE_BOS | PITH_TOKENIZE_SPECIAL,
                    &p->before, &p->n_before, err));
    return tokenize(model, rest, strlen(rest), PITH_TOKENIZE_SPECIAL, &p->middle, &p->n_middle,
                    err);
}

pith_status importance_prompt_create(const struct pith_model *model, struct importance_prompt *out,
                                     pith_error *err)
{
    char *text = NULL;
    *out = (struct importance_prompt){0};
    pith_status status = render(model, &text, err);
    if (status == PITH_OK)
        status = split(model, text, out, err);
    pi_mem_free(text);
    if (status != PITH_OK)
        importance_prompt_free(out);
    return status;
}

void importance_prompt_free(struct importance_prompt *p)
{
    pi_mem_free(p->before);
    pi_mem_free(p->middle);
    *p = (struct importance_prompt){0};
}
