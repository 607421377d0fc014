/*
 * A request counts against the queue until its answer is whole: when the connection goes on, its
 * place is free. libmicrohttpd's call that lets it go on is ours here, and looks.
 */
#include <stdlib.h>

#include "state.h"
#include "testing.h"

static struct server *server;
static int n_at_resume;

void MHD_resume_connection(struct MHD_Connection *connection);
void MHD_resume_connection(struct MHD_Connection *connection)
{
    (void)connection;
    n_at_resume = atomic_load(&server->count.n_answer);
}

static int n_now(void)
{
    return atomic_load(&server->count.n_answer);
}

/* A request whose connection waits for its answer, as the first of two. */
static struct exchange *waiting(void)
{
    server = calloc(1, sizeof(*server));
    assert_non_null(server);
    test_free_later(server);
    server->config.stream_max = 1 << 20;
    atomic_store(&server->count.n_answer, 1);
    struct exchange *ex = exchange_create(server, NULL, "/completion");
    assert_non_null(ex);
    exchange_begin_wait(ex);
    assert_int_equal(n_now(), 2);
    ex->suspended = true;
    n_at_resume = -1;
    return ex;
}

TEST(an_answered_request_makes_room_before_its_client_hears_of_it)
{
    struct exchange *ex = waiting();
    assert_true(exchange_send(ex, "{}", 2));
    assert_int_equal(n_now(), 2);
    exchange_end(ex, 200);
    assert_int_equal(n_at_resume, 1);
    exchange_end_wait(ex);
    assert_int_equal(n_now(), 1);
    exchange_release(ex);
}

TEST(a_stream_counts_until_its_end)
{
    struct exchange *ex = waiting();
    exchange_open_events(ex, NULL);
    assert_int_equal(n_at_resume, 2);
    ex->suspended = true;
    exchange_end(ex, 200);
    assert_int_equal(n_at_resume, 1);
    exchange_release(ex);
}

TEST(a_request_without_its_client_counts_until_its_work_ends)
{
    struct exchange *ex = waiting();
    exchange_gone(ex);
    assert_int_equal(n_at_resume, 2);
    assert_int_equal(n_now(), 2);
    exchange_end_wait(ex);
    assert_int_equal(n_now(), 1);
    exchange_release(ex);
}
