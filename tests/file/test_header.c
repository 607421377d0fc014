/*
 * The public headers under the strictest C99 and C++ settings. This one file is compiled in both
 * languages with -pedantic and -Werror, and it uses the header's types as a caller does.
 */
#include "pith/pith.h"
#include "pith/pith.h" /* twice does no harm */
#include "pith/grammar.h"
#include "pith/plan.h"
#include "pith/scheduler.h"

#ifdef __cplusplus
extern "C" {
#endif
static bool on_token(void *user, const pith_answer_token *token)
{
    return user == (void *)0 && token->token >= 0;
}

static void on_done(void *user, const pith_answer_result *result)
{
    (void)user;
    (void)result;
}

static void on_pair(void *user, const pith_share_pair *pair)
{
    (void)user;
    (void)pair;
}
#ifdef __cplusplus
}
#endif

/* Many requests, and shared pages. */
static int check_scheduler(void)
{
    pith_scheduler_params params;
    pith_request request;
    pith_policy_info policy;
    pith_error err;
    pith_answer_token_fn *token_fn = on_token;
    pith_share_fn *pair_fn = on_pair;
    int failed = 0;

    pith_scheduler_params_default(&params);
    pith_request_default(&request);
    request.on_token = token_fn;
    request.on_done = on_done;
    failed |= params.n_seq <= 0 || params.n_queue <= 0 || params.reserve >= 0.0;
    failed |= request.n_answer != 1 || request.params != (const pith_generate_params *)0;
    failed |= pair_fn == (pith_share_fn *)0;
    failed |= pith_policy_check(PITH_SHARE, "no such policy", &err) != PITH_INVALID;
    failed |= pith_policy_get(PITH_SHARE, 0, &policy) != PITH_OK || policy.name[0] == '\0';
    pith_scheduler_free((pith_scheduler *)0);
    return failed;
}

int main(void)
{
    pith_engine_params engine;
    pith_generate_params generate;
    pith_model_params model;
    pith_error err;
    pith_model *none = (pith_model *)0;
    int failed = 0;

    pith_engine_params_default(&engine);
    pith_generate_params_default(&generate);
    pith_model_params_default(&model);
    failed |= engine.chunk <= 0;
    failed |= generate.n_predict != -1;
    failed |= model.vocab_only;
    failed |= pith_model_load("/nonexistent", &model, &none, &err) != PITH_IO;
    failed |= err.status != PITH_IO || none != (pith_model *)0;
    failed |= pith_version()[0] == '\0';
    pith_model_free(none);
    failed |= check_scheduler();
    return failed;
}
