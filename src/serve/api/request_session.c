/*
 * request_session.c - the name of a conversation, as clients that know no slots send it. It is a
 * hint: among parked conversations that have as much of a prompt it prefers one. So a value that is
 * no name is passed over.
 */
#include "serve/api/request_body.h"

#include <string.h>

#include "base/hash.h"

/* Never 0, which is no name. */
uint64_t serve_name_hash(const char *text, size_t len)
{
    uint64_t hash = pi_hash_bytes(PI_HASH_EMPTY, text, len);
    return hash != 0 ? hash : 1;
}

/* The first of these is the name: names of a conversation come before names of a person. */
void request_read_session(struct serve_reader *rd, const json_t *body)
{
    const json_t *metadata = request_get(body, "metadata");
    const json_t *const names[] = {
        request_get(body, "session_id"),
        request_get(metadata, "session_id"),
        request_get(body, "prompt_cache_key"),
        request_get(metadata, "user_id"), /* Anthropic's */
        request_get(body, "user"),
    };
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]) && rd->r->cache.session == 0; i++)
        if (json_string_length(names[i]) > 0)
            rd->r->cache.session =
                serve_name_hash(json_string_value(names[i]), json_string_length(names[i]));
}
