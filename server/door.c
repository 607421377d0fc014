/*
 * door.c - door.h: finds the address, listens, and answers without a model. It has one thread of
 * libmicrohttpd's, and knows nothing of the rest of the server.
 */
#define _POSIX_C_SOURCE 200809L

#include "door.h"
#include "events.h"

#include <errno.h>
#include <microhttpd.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

struct server_door {
    struct MHD_Daemon *daemon;
    int32_t port;
};

static const char alive[] = "{\"status\":\"ok\"}";
static const char loads[] =
    "{\"status\":\"loading model\",\"error\":{\"code\":503,\"message\":\"the "
    "model is being loaded\",\"type\":\"unavailable_error\"}}";

static enum MHD_Result on_request(void *user, struct MHD_Connection *connection, const char *url,
                                  const char *method, const char *version, const char *data,
                                  size_t *len, void **state)
{
    static char begun;
    bool live = strcmp(url, "/health/live") == 0;
    const char *text = live ? alive : loads;
    (void)user;
    (void)method;
    (void)version;
    (void)data;
    if (*state == NULL || *len > 0) { /* a body is read and thrown away */
        *state = &begun;
        *len = 0;
        return MHD_YES;
    }
    struct MHD_Response *response =
        MHD_create_response_from_buffer(strlen(text), (void *)text, MHD_RESPMEM_PERSISTENT);
    if (response == NULL)
        return MHD_NO;
    MHD_add_response_header(response, "Content-Type", "application/json; charset=utf-8");
    MHD_add_response_header(response, "Connection", "close"); /* the server is another one */
    if (!live)
        MHD_add_response_header(response, "Retry-After", "1");
    unsigned code = live ? MHD_HTTP_OK : MHD_HTTP_SERVICE_UNAVAILABLE;
    enum MHD_Result result = MHD_queue_response(connection, code, response);
    MHD_destroy_response(response);
    return result;
}

static pith_status fail(pith_error *err, pith_status status, const struct server_config *c,
                        const char *why)
{
    err->status = status;
    snprintf(err->message, sizeof(err->message), "cannot listen on %.100s port %d: %.80s", c->host,
             c->port, why);
    return status;
}

/* "::" is every address of both kinds. */
static unsigned daemon_flags(const struct server_config *c, int family)
{
    unsigned six = strcmp(c->host, "::") == 0 ? MHD_USE_DUAL_STACK : MHD_USE_IPv6;
    return MHD_USE_POLL_INTERNAL_THREAD | MHD_USE_ITC | (family == AF_INET6 ? six : 0) |
           (c->tls_key != NULL ? MHD_USE_TLS : 0);
}

static struct MHD_Daemon *listen_on(const struct server_config *c, const struct addrinfo *at)
{
    struct MHD_OptionItem tls[] = {
        {MHD_OPTION_HTTPS_MEM_KEY, 0, (void *)c->tls_key},
        {MHD_OPTION_HTTPS_MEM_CERT, 0, (void *)c->tls_cert},
        {MHD_OPTION_END, 0, NULL},
    };
    return MHD_start_daemon(daemon_flags(c, at->ai_family), 0, NULL, NULL, on_request, NULL,
                            MHD_OPTION_SOCK_ADDR, at->ai_addr, MHD_OPTION_CONNECTION_LIMIT,
                            (unsigned)c->n_connection, MHD_OPTION_CONNECTION_TIMEOUT, 10u,
                            MHD_OPTION_ARRAY, c->tls_key != NULL ? tls : tls + 2, MHD_OPTION_END);
}

/* Why the TLS library does not take the key and the certificate, of which it says nothing. */
static const char *tls_reason(const struct server_config *c)
{
    if (strstr(c->tls_key, "ENCRYPTED") != NULL)
        return "the TLS key is encrypted, and there is no way to give its passphrase";
    if (strstr(c->tls_key, "PRIVATE KEY-----") == NULL)
        return "the TLS key is no private key in PEM";
    if (strstr(c->tls_cert, "BEGIN CERTIFICATE-----") == NULL)
        return "the TLS certificate is none in PEM";
    return "the TLS key and certificate cannot be used together";
}

/* The first address of a host that this machine has; *why is errno of the last that was tried. */
static struct MHD_Daemon *listen_on_any(const struct server_config *c, const struct addrinfo *at,
                                        int *why)
{
    struct MHD_Daemon *daemon = NULL;
    for (; at != NULL && daemon == NULL; at = at->ai_next) {
        errno = 0;
        daemon = listen_on(c, at);
        *why = errno;
        if (*why != EADDRNOTAVAIL && *why != EAFNOSUPPORT)
            break;
    }
    return daemon;
}

pith_status server_open(const struct server_config *c, struct server_door **out, pith_error *err)
{
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM}, *at = NULL;
    char port[16];
    int number = 0;
    pith_status status = c->events != NULL ? events_check(c->events, err) : PITH_OK;
    if (status != PITH_OK)
        return status;
    hints.ai_flags = AI_PASSIVE;
    snprintf(port, sizeof(port), "%d", c->port);
    int why = getaddrinfo(c->host, port, &hints, &at);
    if (why != 0)
        return fail(err, PITH_INVALID, c, gai_strerror(why));
    struct MHD_Daemon *daemon = listen_on_any(c, at, &number);
    freeaddrinfo(at);
    if (daemon == NULL && c->tls_key != NULL && number == 0)
        return fail(err, PITH_INVALID, c, tls_reason(c));
    if (daemon == NULL)
        return fail(err, PITH_IO, c, number != 0 ? strerror(number) : "no socket");
    struct server_door *door = malloc(sizeof(*door));
    if (door == NULL) {
        MHD_stop_daemon(daemon);
        return fail(err, PITH_NOMEM, c, "no memory");
    }
    const union MHD_DaemonInfo *info = MHD_get_daemon_info(daemon, MHD_DAEMON_INFO_BIND_PORT);
    *door = (struct server_door){daemon, info != NULL ? info->port : c->port};
    *out = door;
    return PITH_OK;
}

int32_t door_port(const struct server_door *door)
{
    return door->port;
}

int door_take(struct server_door *door)
{
    int fd = MHD_quiesce_daemon(door->daemon);
    MHD_stop_daemon(door->daemon);
    free(door);
    return fd;
}
