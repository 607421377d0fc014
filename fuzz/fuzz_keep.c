/*
 * fuzz_keep.c - the options of a keep policy from any text, fitted to a shape that the first two
 * bytes choose. A finding is a sanitizer's report, a refusal without a sentence, or accepted rules
 * that contradict themselves.
 */
#include <stdlib.h>

#include "keep/keep.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool holds)
{
    if (!holds)
        abort();
}

/* A budget holds what is protected, and is never passed by more than the slack, nor, where rounds
   wait for a multiple of `batch` tokens, by more than both. */
static void check_rules(const struct keep_config *c)
{
    const struct keep_rules *r = &c->rules;
    int64_t protects = pi_max(r->prefix, r->sinks) + (int64_t)r->window;
    require(r->slack >= 1 && r->prefix >= 0 && r->sinks >= 0 && r->window >= 0);
    for (int64_t n = 1; n <= INT32_MAX; n *= 3) {
        int64_t budget = keep_budget_at(c, (int32_t)n), most = keep_most_at(c, (int32_t)n);
        require(budget >= 1 && budget >= protects);
        require(most <= n && (most == n || most >= budget));
        require(most <= budget + r->slack + r->batch);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct keep_config c;
    pith_error err = {0};
    if (size < 2)
        return 0;
    struct kv_geometry g = {1 + data[0] % 40,  1 + data[0] / 40, 64,          32,
                            16 << data[1] % 3, KV_TYPE_F16,      KV_TYPE_Q8_0};
    char *text = malloc(size - 1);
    require(text != NULL);
    memcpy(text, data + 2, size - 2);
    text[size - 2] = '\0';
    pith_status status = keep_config_parse(text, &c, &err);
    require(pith_keep_check(text, NULL) == status);
    if (status == PITH_OK)
        status = keep_config_fit(&c, &g, &err);
    /* What is no way to share a budget is the name of a file, which is not there. */
    require(status == PITH_OK ||
            ((status == PITH_INVALID || status == PITH_IO) && err.message[0] != '\0'));
    if (status == PITH_OK && c.policy != NULL)
        check_rules(&c);
    free(text);
    return 0;
}
