/*
 * model_thread.c - the model thread and the workers: two loops over queues. The model thread alone
 * touches the engine and steps the scheduler; between steps it does what requests want of it.
 */
#define _POSIX_C_SOURCE 200809L

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "state.h"
#include "view.h"

#define STATS_EVERY_S 0.05
#define IDLE_S 1.0

double server_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void publish(struct server *s, double *last, bool idle)
{
    pith_kv_stats kv;
    pith_kv_device pages[SERVER_DEVICES];
    int32_t n = 0;
    pith_memory_stats memory, draft = {0};
    const pith_draft_params *drafts = s->config.schedule.draft;
    double now = server_now();
    int64_t claimed;
    if (!idle && now - *last < STATS_EVERY_S)
        return;
    *last = now;
    pith_engine_kv_stats(s->config.engine, &kv);
    pith_engine_memory_stats(s->config.engine, &memory);
    while (n < SERVER_DEVICES && pith_engine_kv_device(s->config.engine, n, &pages[n]) == PITH_OK)
        n++;
    if (drafts != NULL && drafts->engine != NULL)
        pith_engine_memory_stats(drafts->engine, &draft);
    claimed = pith_scheduler_claimed_bytes(s->scheduler);
    pthread_mutex_lock(&s->lock);
    s->kv = kv;
    memcpy(s->pages, pages, (size_t)n * sizeof(*pages));
    s->n_pages = n;
    s->memory = memory;
    s->draft = draft;
    s->claimed_bytes = claimed;
    pthread_mutex_unlock(&s->lock);
}

static void run_task(struct exchange *ex)
{
    ex->task(ex);
    exchange_release(ex);
}

/* A step that fails is no request's fault, and the next one may do: what it said is noted. */
static void note_failure(const pith_error *err)
{
    struct timespec pause = {.tv_nsec = 10 * 1000 * 1000};
    fprintf(stderr, "pith serve: a step failed: %s\n", err->message);
    nanosleep(&pause, NULL);
}

void *server_model_loop(void *user)
{
    struct server *s = user;
    pith_error err;
    double published = 0.0;
    bool idle = true;
    while (!queue_closed(&s->to_model)) {
        struct exchange *ex = queue_pop(&s->to_model, idle ? IDLE_S : 0.0);
        for (; ex != NULL; ex = queue_pop(&s->to_model, 0.0))
            run_task(ex);
        if (pith_scheduler_step(s->scheduler, &idle, &err) != PITH_OK)
            note_failure(&err);
        idle = !answer_go_on(s) && idle;
        events_flush(s->events);
        answer_tell_progress(s);
        publish(s, &published, idle);
        view_tick(s, idle);
    }
    view_close(s);
    answer_cancel_all(s);
    if (pith_scheduler_run(s->scheduler, &err) != PITH_OK)
        note_failure(&err);
    return NULL;
}

void *server_worker_loop(void *user)
{
    struct server *s = user;
    struct exchange *ex;
    while ((ex = queue_pop(&s->to_workers, -1.0)) != NULL)
        run_task(ex);
    return NULL;
}
