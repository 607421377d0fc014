/*
 * access.c - API keys, and whether a client is on this machine.
 *
 * Texts of others (/kv, /slots) are shown without keys to this machine alone, and there not to
 * every page that its browser has open. Such pages ask in the name of another origin, or of a host
 * name that was pointed here.
 */
#define _POSIX_C_SOURCE 200809L

#include "access.h"

#include <arpa/inet.h>
#include <microhttpd.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "routes.h"
#include "state.h"

/* Takes as long for any key of a length, so that times tell nothing of it. */
static bool same_key(const char *a, const char *b)
{
    size_t n = strlen(a);
    unsigned differs = 0;
    if (strlen(b) != n)
        return false;
    for (size_t i = 0; i < n; i++)
        differs |= (unsigned char)(a[i] ^ b[i]);
    return differs == 0;
}

static const char *header(const struct exchange *ex, const char *name)
{
    return MHD_lookup_connection_value(ex->connection, MHD_HEADER_KIND, name);
}

static bool has_key(const struct exchange *ex)
{
    static const char bearer[] = "Bearer ";
    const struct server_config *config = &ex->server->config;
    const char *given = header(ex, "Authorization");
    if (given != NULL && strncasecmp(given, bearer, strlen(bearer)) == 0)
        given += strlen(bearer);
    else
        given = header(ex, "x-api-key");
    bool found = false;
    for (int32_t i = 0; given != NULL && i < config->n_key; i++)
        found = same_key(config->keys[i], given) || found;
    return found;
}

static bool is_loopback(const struct exchange *ex)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(ex->connection, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
    if (info == NULL || info->client_addr == NULL)
        return false;
    if (info->client_addr->sa_family == AF_INET) {
        const struct sockaddr_in *in = (const void *)info->client_addr;
        return ntohl(in->sin_addr.s_addr) >> 24 == 127;
    }
    if (info->client_addr->sa_family == AF_INET6) {
        const struct sockaddr_in6 *in = (const void *)info->client_addr;
        bool mapped = IN6_IS_ADDR_V4MAPPED(&in->sin6_addr) && in->sin6_addr.s6_addr[12] == 127;
        return IN6_IS_ADDR_LOOPBACK(&in->sin6_addr) || mapped;
    }
    return false;
}

/* "localhost:8080", "127.0.0.1", "[::1]:8080". A server of all addresses says "0.0.0.0" or "[::]"
   of itself. None of them is a name that others can point here. */
static bool names_loopback(const char *host)
{
    static const char *const names[] = {"localhost", "[::1]", "0.0.0.0", "[::]"};
    char address[INET_ADDRSTRLEN];
    struct in_addr in;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        size_t len = strlen(names[i]);
        if (strncasecmp(host, names[i], len) == 0 && (host[len] == '\0' || host[len] == ':'))
            return true;
    }
    size_t len = strcspn(host, ":");
    snprintf(address, sizeof(address), "%.*s", (int)(len < sizeof(address) ? len : 0), host);
    return inet_pton(AF_INET, address, &in) == 1 && ntohl(in.s_addr) >> 24 == 127;
}

static bool is_local(const struct exchange *ex)
{
    const char *host = header(ex, "Host"), *origin = header(ex, "Origin");
    if (!is_loopback(ex) || (host != NULL && !names_loopback(host)))
        return false;
    const char *at = origin != NULL ? strstr(origin, "://") : NULL;
    return origin == NULL || (at != NULL && names_loopback(at + 3));
}

void access_check(struct exchange *ex)
{
    bool keyed = ex->server->config.n_key > 0;
    enum route_access access = ex->route->access;
    if (access == ROUTE_OPEN || (keyed && has_key(ex)))
        return;
    if (keyed) {
        ex->challenge = "Bearer";
        serve_fault_set(&ex->fault, MHD_HTTP_UNAUTHORIZED, "authentication_error", NULL,
                        "%s needs an API key: \"Authorization: Bearer KEY\" or \"x-api-key: KEY\"",
                        ex->route->path);
    } else if (access == ROUTE_PRIVATE && !is_local(ex)) {
        serve_fault_set(&ex->fault, MHD_HTTP_FORBIDDEN, "permission_error", NULL,
                        "%s shows what is in the cache: it is for this machine alone unless the "
                        "server has an API key (--api-key)",
                        ex->route->path);
    }
}

bool access_shares(const struct exchange *ex)
{
    return ex->route == NULL || ex->route->access != ROUTE_PRIVATE || ex->server->config.n_key > 0;
}
