/*
 * scheduler_retell.c - a prompt in the words of the slot that it goes on from. A model may spell an
 * answer in other tokens than the tokenizer: under a grammar it does so for calls of tools. The
 * next turn has the same text, and its tokens differ there. Where a policy does not let a parked
 * sequence be cut, everything would be read again, and what the policy knows would be lost. Here
 * its own tokens stay in the prompt instead. So does what recall of text read in front of a
 * question, which no client knows of.
 *
 * Invariant: a template's text is never taken for a user's, nor the other way round. A control
 * token that is parked is met by the same token only. One of the prompt may be met by its text,
 * which is weaker.
 */
#include "serve/scheduler/scheduler.h"

#include "base/mem.h"

#define TOKEN_BYTES_MAX 512

/* A place in a list of tokens, and the bytes of the token before it that are not compared yet. */
struct reader {
    const struct pi_vocab *vocab;
    const int32_t *token; /* [n] */
    int32_t n, at;
    char bytes[TOKEN_BYTES_MAX];
    size_t from, to;
};

/* The next token's bytes, none for a control token unless special. False: it has too many. */
static bool next(struct reader *r, bool special)
{
    r->from = r->to = 0;
    return pi_vocab_token_bytes(r->vocab, r->token[r->at++], special, r->bytes, TOKEN_BYTES_MAX,
                                &r->to) == PITH_OK;
}

/* Goes over the parked token's text in the prompt. False: the prompt says something else. */
static bool follow(struct reader *parked, struct reader *prompt)
{
    if (!next(parked, false))
        return false;
    if (parked->to == 0) /* a control token */
        return prompt->from == prompt->to && prompt->at < prompt->n &&
               prompt->token[prompt->at++] == parked->token[parked->at - 1];
    while (parked->from < parked->to) {
        if (prompt->from == prompt->to && (prompt->at == prompt->n || !next(prompt, true)))
            return false;
        size_t n = pi_min(parked->to - parked->from, prompt->to - prompt->from);
        if (n == 0 || memcmp(parked->bytes + parked->from, prompt->bytes + prompt->from, n) != 0)
            return false;
        parked->from += n;
        prompt->from += n;
    }
    return true;
}

/* The tokens of the rest of that token of the prompt at whose middle the parked text ends, in out
   [TOKEN_BYTES_MAX]. False: tokens do not give these bytes. */
static bool split(const struct reader *prompt, int32_t *out, int32_t *n)
{
    char back[TOKEN_BYTES_MAX];
    const char *text = prompt->bytes + prompt->from;
    size_t len = prompt->to - prompt->from, back_len = 0;
    *n = 0;
    if (len == 0)
        return true;
    if (pi_vocab_tokenize(prompt->vocab, text, len, 0, out, TOKEN_BYTES_MAX, n, NULL) != PITH_OK)
        return false;
    for (int32_t i = 0; i < *n; i++) {
        size_t more = 0;
        if (pi_vocab_token_bytes(prompt->vocab, out[i], false, back + back_len,
                                 sizeof(back) - back_len, &more) != PITH_OK)
            return false;
        back_len += more;
    }
    return back_len == len && memcmp(back, text, len) == 0;
}

void scheduler_untell(struct sched_answer *a)
{
    if (!a->known.retold)
        return;
    pi_mem_free(a->known.list);
    a->known.list = NULL;
    a->known.n = a->request->n_prompt;
    a->known.n_more = 0;
    a->known.retold = false;
    scheduler_ask_forget(a);
}

/* Goes over all of the parked text in the prompt, whose rest is then n_middle tokens of `middle`
   [TOKEN_BYTES_MAX] and those from prompt->at on. False: the prompt says something else, or
   nothing more. */
static bool meet(const pith_seq *seq, const struct request *r, struct reader *prompt,
                 int32_t *middle, int32_t *n_middle)
{
    const struct pi_vocab *vocab = seq->engine->model->vocab;
    struct reader parked = {.vocab = vocab, .token = seq->tokens, .n = seq->n_token};
    *prompt = (struct reader){.vocab = vocab, .token = r->prompt, .n = r->n_prompt};
    if (r->on_prompt != NULL) /* it is shown the tokens that it gave */
        return false;
    for (int32_t i = 0; parked.at < parked.n;) {
        const struct pi_insert *insert = &seq->text.insert[i];
        if (i < seq->text.n_insert && insert->from == parked.at) {
            parked.at += insert->n;
            i++;
        } else if (!follow(&parked, prompt)) {
            return false;
        }
    }
    return split(prompt, middle, n_middle) &&
           (*n_middle > 0 || prompt->at < prompt->n || seq->has_logits);
}

bool scheduler_can_retell(const pith_seq *seq, const struct request *r)
{
    struct reader prompt;
    int32_t middle[TOKEN_BYTES_MAX], n_middle;
    return meet(seq, r, &prompt, middle, &n_middle);
}

bool scheduler_retell(const pith_seq *seq, struct sched_answer *a)
{
    const struct request *r = a->request;
    struct reader prompt;
    int32_t middle[TOKEN_BYTES_MAX], n_middle;
    if (!meet(seq, r, &prompt, middle, &n_middle))
        return false;
    int32_t n_rest = prompt.n - prompt.at;
    size_t n = (size_t)seq->n_token + (size_t)n_middle + (size_t)n_rest;
    int32_t *known = n <= INT32_MAX ? pi_mem_alloc(PI_MEM_OTHER, n * sizeof(*known)) : NULL;
    if (known == NULL)
        return false;
    memcpy(known, seq->tokens, (size_t)seq->n_token * sizeof(*known));
    memcpy(known + seq->n_token, middle, (size_t)n_middle * sizeof(*known));
    memcpy(known + seq->n_token + n_middle, r->prompt + prompt.at, (size_t)n_rest * sizeof(*known));
    a->known.list = known;
    a->known.n = (int32_t)n;
    a->known.n_more = a->known.n - r->n_prompt;
    a->known.retold = true;
    scheduler_ask_forget(a);
    return true;
}
