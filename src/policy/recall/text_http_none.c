/*
 * text_http_none.c - the outside store of a build without HTTP (PITH_HTTP=OFF): there is none. No
 * other call than opening is reached.
 */
#include "policy/recall/text_http.h"

pith_status text_http_open(const char *url, int32_t timeout_ms, struct text_http **out,
                           pith_error *err)
{
    (void)timeout_ms;
    (void)out;
    return pi_fail(err, PITH_UNSUPPORTED, "recall: url: %.128s: this build has no HTTP", url);
}

void text_http_close(struct text_http *http)
{
    (void)http;
}

pith_status text_http_write(struct text_http *http, const char *session,
                            const struct text_hit *hits, int32_t n, pith_error *err)
{
    (void)http, (void)session, (void)hits, (void)n;
    return pi_fail(err, PITH_INTERNAL, "recall: this build has no HTTP");
}

pith_status text_http_find(struct text_http *http, const char *session, const char *question,
                           size_t len, const struct text_ranking *ranking, struct text_hits *hits,
                           pith_error *err)
{
    (void)http, (void)session, (void)question, (void)len, (void)ranking, (void)hits;
    return pi_fail(err, PITH_INTERNAL, "recall: this build has no HTTP");
}

pith_status text_http_list(struct text_http *http, const char *session, struct text_hits *hits,
                           pith_error *err)
{
    (void)http, (void)session, (void)hits;
    return pi_fail(err, PITH_INTERNAL, "recall: this build has no HTTP");
}
