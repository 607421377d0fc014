/*
 * server.c - the server's life: what is started in which order, and ended in the other.
 *
 * Invariant: connections end before the scheduler is freed, and the model thread before that: a
 * client that hangs up cancels through the scheduler.
 */
#define _POSIX_C_SOURCE 200809L

#include "server.h"

#include <fcntl.h>
#include <microhttpd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "http.h"
#include "serve/view/view.h"
#include "state.h"

#define LAST_WORDS_S 1.0 /* in which clients that are cut off are told so */

static void init(struct server *s, const struct server_config *config)
{
    pthread_condattr_t attr;
    s->config = *config;
    s->listen_fd = -1;
    s->started = (int64_t)time(NULL);
    s->started_s = server_now();
    pith_model_get_info(config->model, &s->info);
    pith_engine_kv_stats(config->engine, &s->kv);
    pith_engine_memory_stats(config->engine, &s->memory);
    queue_init(&s->to_workers);
    queue_init(&s->to_model);
    pthread_mutex_init(&s->links.lock, NULL);
    pthread_mutex_init(&s->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&s->quiet, &attr);
    pthread_condattr_destroy(&attr);
}

static void init_requests(struct server *s)
{
    const struct server_config *c = &s->config;
    pith_keep_rules rules;
    serve_setup_default(&s->requests);
    s->requests.model = c->model;
    s->requests.alias = c->alias;
    s->requests.template_name = c->template_name;
    s->requests.template_text = c->template_text;
    s->requests.n_ctx = c->n_ctx;
    s->requests.n_slot = c->schedule.n_slot;
    s->requests.finds = c->schedule.n_slot > 0 && !c->schedule.no_prefix;
    s->requests.pins =
        pith_keep_get_rules(c->policy[PITH_KEEP], &rules, NULL) == PITH_OK && rules.pin_prompt;
    s->requests.can_score_prompt = true;
    s->requests.params = c->generate;
}

static void make_boot(struct server *s)
{
    unsigned long long seed = (unsigned long long)time(NULL) << 20 ^ (unsigned long long)getpid();
    int fd = open("/dev/urandom", O_RDONLY | O_CLOEXEC);
    if (fd >= 0) {
        if (read(fd, &seed, sizeof(seed)) < 0)
            seed ^= (unsigned long long)clock();
        close(fd);
    }
    snprintf(s->boot, sizeof(s->boot), "%016llx", seed);
}

pith_status server_make_view(struct server *s, struct serve_view **out, pith_error *err)
{
    const struct server_config *c = &s->config;
    struct serve_view_setup setup = {
        .model = c->model,
        .alias = c->alias,
        .keep = c->policy[PITH_KEEP],
        .read = c->policy[PITH_READ],
        .recall = c->policy[PITH_RECALL],
        .share = c->policy[PITH_SHARE],
    };
    return serve_view_create(&setup, out, err);
}

static pith_status start_events(struct server *s, pith_error *err)
{
    struct events_setup setup = {
        .config = s->config.events, .model = server_model_name(s), .page_len = s->kv.page_len};
    if (s->config.events == NULL)
        return PITH_OK;
    pith_status status = events_start(&setup, &s->events, err);
    if (s->events != NULL) {
        s->config.schedule.on_prefix = events_note;
        s->config.schedule.prefix_user = s->events;
    }
    return status;
}

static bool start_threads(struct server *s)
{
    for (int i = 0; i < SERVER_N_WORKER; i++, s->n_thread++)
        if (pthread_create(&s->worker[i], NULL, server_worker_loop, s) != 0)
            return false;
    if (pthread_create(&s->model_thread, NULL, server_model_loop, s) != 0)
        return false;
    s->n_thread++;
    return links_start(s);
}

pith_status server_start(const struct server_config *config, struct server **out, pith_error *err)
{
    struct server *s = calloc(1, sizeof(*s));
    if (s == NULL) {
        *err = (pith_error){PITH_NOMEM, "no memory for the server"};
        return PITH_NOMEM;
    }
    memory_keep_little();
    init(s, config);
    init_requests(s);
    make_boot(s);
    pith_status status = start_events(s, err);
    if (status == PITH_OK)
        status = pith_scheduler_create(config->engine, &s->config.schedule, &s->scheduler, err);
    if (status == PITH_OK)
        status = server_make_view(s, &s->view, err);
    if (status == PITH_OK && !start_threads(s)) {
        *err = (pith_error){PITH_NOMEM, "no memory for the server's threads"};
        status = PITH_NOMEM;
    }
    if (status == PITH_OK)
        status = http_start(s, err);
    if (status == PITH_OK)
        *out = s;
    else
        server_stop(s);
    return status;
}

int32_t server_port(const struct server *s)
{
    return s->port;
}

void server_drain(struct server *s)
{
    atomic_store(&s->stage, SERVER_DRAINS);
}

int32_t server_busy(struct server *s)
{
    pthread_mutex_lock(&s->lock);
    int32_t n = s->n_open;
    pthread_mutex_unlock(&s->lock);
    return n;
}

bool server_wait(struct server *s, double seconds)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += (time_t)seconds;
    until.tv_nsec += (long)((seconds - (double)(time_t)seconds) * 1e9);
    if (until.tv_nsec >= 1000000000L) {
        until.tv_sec++;
        until.tv_nsec -= 1000000000L;
    }
    pthread_mutex_lock(&s->lock);
    while (s->n_open > 0 && pthread_cond_timedwait(&s->quiet, &s->lock, &until) == 0)
        continue;
    bool quiet = s->n_open == 0;
    pthread_mutex_unlock(&s->lock);
    return quiet;
}

static void stop_threads(struct server *s)
{
    queue_close(&s->to_workers);
    for (int i = 0; i < SERVER_N_WORKER && i < s->n_thread; i++)
        pthread_join(s->worker[i], NULL);
    queue_close(&s->to_model);
    if (s->n_thread > SERVER_N_WORKER)
        pthread_join(s->model_thread, NULL);
}

void server_stop(struct server *s)
{
    if (s == NULL)
        return;
    server_drain(s);
    http_close(s);
    stop_threads(s);
    if (s->daemon != NULL)
        server_wait(s, LAST_WORDS_S);
    atomic_store(&s->stage, SERVER_STOPS);
    links_stop(s);
    links_abort(s);
    http_stop(s);
    pith_scheduler_free(s->scheduler);
    serve_view_free(s->view);
    events_stop(s->events);
    queue_destroy(&s->to_workers);
    queue_destroy(&s->to_model);
    links_destroy(&s->links);
    pthread_cond_destroy(&s->quiet);
    pthread_mutex_destroy(&s->lock);
    free(s);
}
