/*
 * fuzz_read.c - the options of a read policy from any text, fitted to a shape that the first two
 * bytes choose. A finding is a sanitizer's report, a refusal without a sentence, or accepted rules
 * that contradict themselves.
 */
#include <stdlib.h>

#include "policy/read/reading.h"
#include "pith/policy.h"
#include "policy_options.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* For n entries a policy reads at least the entries that it always reads, and at most n. Where the
   rules say that it reads a lane whole, it does. */
static void check_budget(const struct read_rules *r, int32_t n)
{
    int64_t always = (int64_t)r->sinks + r->recent;
    int32_t whole = read_whole_up_to(r);
    for (int32_t n_tok = 1; n_tok <= 2; n_tok++) {
        int32_t n_read = read_budget_for(r, n, n_tok);
        require(n_read >= 1 && n_read <= n);
        require(n_read == n || n_read >= always);
        require(n > whole || n_read == n);
    }
}

/* A pass with room for a chunk takes something, and never more than there is. */
static void check_takes(const struct read_rules *r, int32_t n)
{
    int32_t chunk = read_chunk_of(r), left_read = read_tokens_of(r, n);
    require(chunk >= 1 && left_read >= 0 && left_read <= n);
    for (int32_t room = 1; room <= 2 * chunk; room += 1 + room / 3)
        for (int32_t until = 1; until <= n; until *= 7) {
            int32_t take = read_take_of(r, room, n, left_read, until);
            require(take >= 0 && take <= room && take <= until);
            require(take > 0 || room < chunk);
            if (until > INT32_MAX / 7)
                break;
        }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct read_config c;
    pith_error err = {0};
    if (size < 2)
        return 0;
    struct kv_geometry g = policy_geometry(data);
    char *text = policy_text(data, size);
    pith_status status = read_config_parse(text, &c, &err);
    require(pith_policy_check(PITH_READ, text, NULL) == status);
    if (status == PITH_OK)
        status = read_config_fit(&c, &g, &err);
    require(status == PITH_OK ||
            ((status == PITH_INVALID || status == PITH_UNSUPPORTED) && err.message[0] != '\0'));
    for (int64_t n = 1; status == PITH_OK && c.policy != NULL && n <= 100000000; n *= 3) {
        check_budget(&c.rules, (int32_t)n);
        check_takes(&c.rules, (int32_t)n);
    }
    free(text);
    return 0;
}
