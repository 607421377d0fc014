/*
 * The outside store against a server with the endpoints of longctx-svc (recall_server.py): the
 * exact bodies of requests, and the answers. Servers that fail, hang, redirect or answer something
 * else give one sentence each.
 */
#define _POSIX_C_SOURCE 200809L

#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>

#include "base/mem.h"
#include "folder.h"
#include "policy/recall/text_http.h"
#include "testing.h"

#define SHORT_MS 400

static pid_t server;
static char url[64];

static void set_up(void)
{
    signal(SIGPIPE, SIG_IGN);
    make_folder();
}

TEST_GROUP(set_up, remove_folder);

/* Starts the server; skips the test where there is no Python. */
static void start(const char *mode)
{
    int fd[2];
    char port[16] = "";
    if (system("python3 -c 'import http.server' >/dev/null 2>&1") != 0)
        test_skip("there is no python3");
    remove(in_folder("log"));
    assert_int_equal(pipe(fd), 0);
    server = fork();
    if (server == 0) {
        dup2(fd[1], STDOUT_FILENO);
        close(fd[0]);
        close(fd[1]);
        execlp("python3", "python3", PITH_SOURCE_DIR "/tests/policy/recall/recall_server.py",
               in_folder("log"), mode, (char *)NULL);
        _exit(127);
    }
    close(fd[1]);
    for (size_t n = 0; n + 1 < sizeof(port) && read(fd[0], port + n, 1) == 1 && port[n] != '\n';)
        n++;
    close(fd[0]);
    snprintf(url, sizeof(url), "http://127.0.0.1:%d", atoi(port));
    assert_int_not_equal(atoi(port), 0);
}

static void stop(void)
{
    if (server > 0) {
        kill(server, SIGKILL);
        waitpid(server, NULL, 0);
    }
    server = 0;
}

static struct text_http *open_http(const char *where, int32_t timeout_ms)
{
    struct text_http *http = NULL;
    check(text_http_open(where, timeout_ms, &http, &err), &err);
    return http;
}

/* The log has exactly these lines since the last look. */
static void expect_log(const char *wanted)
{
    static char text[65536];
    FILE *file = fopen(in_folder("log"), "rb");
    assert_non_null(file);
    size_t n = fread(text, 1, sizeof(text) - 1, file);
    fclose(file);
    text[n] = '\0';
    assert_string_equal(text, wanted);
    remove(in_folder("log"));
}

static struct text_hit spans[] = {
    {.first = 68, .last = 142, .layer = -1, .text = (char *)"the code is \"7742\"\n\\ caf\xc3\xa9"},
    {.first = 268, .last = 342, .layer = -1, .text = (char *)"soup of carrots"},
    {.first = 400, .last = 410, .layer = 5, .score = 0.5, .text = (char *)"another code"},
};

static const struct text_ranking ranking = {.alpha = 0.5, .floor = 0.25, .top = 8};

TEST_WITH(NULL, stop, sends_the_documented_bodies)
{
    struct text_hits hits = {0};
    start("");
    struct text_http *http = open_http(url, 5000);
    check(text_http_write(http, "a", spans, 0, &err), &err); /* nothing is sent */
    check(text_http_write(http, "s \"1\" & caf\xc3\xa9", spans, 2, &err), &err);
    expect_log("POST /evict/write application/json "
               "{\"session_id\":\"s \\\"1\\\" & caf\xc3\xa9\",\"chunks\":["
               "{\"text\":\"the code is \\\"7742\\\"\\n\\\\ caf\xc3\xa9\",\"token_range\":[68,142],"
               "\"layer\":-1,\"score\":0.0},"
               "{\"text\":\"soup of carrots\",\"token_range\":[268,342],\"layer\":-1,"
               "\"score\":0.0}]}\n");
    check(
        text_http_find(http, "s \"1\" & caf\xc3\xa9", "Which CODE?\x01", 12, &ranking, &hits, &err),
        &err);
    expect_log("POST /evict/retrieve application/json "
               "{\"session_id\":\"s \\\"1\\\" & caf\xc3\xa9\",\"query\":\"Which CODE?\","
               "\"top_k\":8,\"score_floor\":0.25,\"hybrid_alpha\":0.5}\n");
    assert_int_equal(hits.n, 1);
    assert_int_equal(hits.hit[0].first, 68);
    assert_int_equal(hits.hit[0].last, 142);
    assert_int_equal(hits.hit[0].layer, -1);
    assert_string_equal(hits.hit[0].text, spans[0].text);
    text_hits_free(&hits);
    check(text_http_list(http, "s \"1\" & caf\xc3\xa9", &hits, &err), &err);
    expect_log("GET /evict/dump?session_id=s%20%221%22%20%26%20caf%C3%A9 - \n");
    assert_int_equal(hits.n, 2);
    assert_int_equal(hits.hit[1].first, 268);
    text_hits_free(&hits);
    text_http_close(http);
}

TEST_WITH(NULL, stop, keeps_sessions_apart)
{
    struct text_hits hits = {0};
    struct text_ranking one = {.top = 1};
    char slashes[80];
    start("");
    snprintf(slashes, sizeof(slashes), "%s//", url);
    struct text_http *http = open_http(slashes, 5000);
    check(text_http_write(http, "a", spans, 3, &err), &err);
    check(text_http_find(http, "b", "code", 4, &ranking, &hits, &err), &err);
    assert_int_equal(hits.n, 0);
    check(text_http_find(http, "a", "code", 4, &ranking, &hits, &err), &err);
    assert_int_equal(hits.n, 2);
    assert_int_equal(hits.hit[1].layer, 5);
    assert_true(hits.hit[1].score == 0.5);
    text_hits_free(&hits);
    check(text_http_find(http, "a", "code", 4, &one, &hits, &err), &err);
    assert_int_equal(hits.n, 1);
    text_hits_free(&hits);
    text_http_close(http);
}

/* More spans than one request takes. */
TEST_WITH(NULL, stop, sends_many_spans_in_several_requests)
{
    static struct text_hit many[3 * TEXT_HTTP_CHUNKS + 1];
    struct text_hits hits = {0};
    char line[160];
    start("");
    struct text_http *http = open_http(url, 5000);
    for (int32_t i = 0; i < (int32_t)PI_LEN(many); i++)
        many[i] = (struct text_hit){.first = i, .last = i + 1, .layer = -1, .text = (char *)"word"};
    check(text_http_write(http, "a", many, (int32_t)PI_LEN(many), &err), &err);
    check(text_http_list(http, "a", &hits, &err), &err);
    assert_int_equal(hits.n, PI_LEN(many));
    for (int32_t i = 0; i < hits.n; i++)
        assert_int_equal(hits.hit[i].first, i);
    snprintf(line, sizeof(line), "test $(grep -c POST '%s') = 4", in_folder("log"));
    assert_int_equal(system(line), 0);
    text_hits_free(&hits);
    text_http_close(http);
}

/* Each request fails with the sentence. */
static void expect_all(struct text_http *http, pith_status status, const char *word)
{
    struct text_hits hits = {0};
    expect(text_http_write(http, "a", spans, 2, &err), &err, status, word);
    assert_non_null(strstr(err.message, url));
    expect(text_http_find(http, "a", "code", 4, &ranking, &hits, &err), &err, status, word);
    expect(text_http_list(http, "a", &hits, &err), &err, status, word);
    text_hits_free(&hits);
}

static void check_wrong(const char *mode, pith_status status, const char *word)
{
    start(mode);
    struct text_http *http = open_http(url, 5000);
    expect_all(http, status, word);
    text_http_close(http);
    stop();
}

TEST_WITH(NULL, stop, each_wrong_answer_has_its_sentence)
{
    check_wrong("fail", PITH_IO, "status 500");
    check_wrong("garbage", PITH_FORMAT, "is no JSON object");
    check_wrong("empty", PITH_FORMAT, "is no JSON object");
    check_wrong("list", PITH_FORMAT, "is no JSON object");
    check_wrong("odd", PITH_FORMAT, "the answer has");
    check_wrong("big", PITH_IO, "more than 16777216 bytes");
}

TEST_WITH(NULL, stop, follows_no_redirect)
{
    char line[160];
    check_wrong("redirect", PITH_IO, "status 307: redirects are not followed");
    snprintf(line, sizeof(line), "grep -q elsewhere '%s'", in_folder("log"));
    assert_int_not_equal(system(line), 0);
}

TEST_WITH(NULL, stop, tells_how_many_spans_were_accepted)
{
    start("few");
    struct text_http *http = open_http(url, 5000);
    expect(text_http_write(http, "a", spans, 2, &err), &err, PITH_IO, "1 of 2 spans were accepted");
    text_http_close(http);
}

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

TEST_WITH(NULL, stop, gives_up_when_the_server_hangs)
{
    start("hang");
    struct text_http *http = open_http(url, SHORT_MS);
    double begin = now_s();
    expect(text_http_write(http, "a", spans, 1, &err), &err, PITH_IO, "no answer within 0.4 s");
    double took = now_s() - begin;
    assert_true(took > 0.3 && took < 5);
    text_http_close(http);
}

TEST_WITH(NULL, stop, tells_that_no_server_is_there)
{
    start("");
    stop(); /* no server listens at its port now */
    struct text_http *http = open_http(url, 5000);
    expect_all(http, PITH_IO, "127.0.0.1");
    text_http_close(http);
}

TEST_WITH(NULL, stop, uses_no_proxy_of_the_environment)
{
    start("");
    setenv("http_proxy", "http://127.0.0.1:1", 1);
    setenv("ALL_PROXY", "http://127.0.0.1:1", 1);
    struct text_http *http = open_http(url, 5000);
    check(text_http_write(http, "a", spans, 1, &err), &err);
    text_http_close(http);
    unsetenv("http_proxy");
    unsetenv("ALL_PROXY");
}

TEST(refuses_bad_urls)
{
    static const char *const bad[] = {
        "",
        "127.0.0.1:80",
        "ftp://127.0.0.1",
        "file:///etc/passwd",
        "http://",
        "http:// a",
        "http://127.0.0.1:99999",
        "http://me:secret@127.0.0.1",
        "http://127.0.0.1/?a=b",
        "http://127.0.0.1/#a",
    };
    struct text_http *http = NULL;
    for (size_t i = 0; i < PI_LEN(bad); i++)
        expect(text_http_open(bad[i], 100, &http, &err), &err, PITH_INVALID, "recall: url");
    text_http_close(open_http("https://store.example:8443/recall/", 100));
    text_http_close(open_http("http://[::1]:5054", 100));
}

TEST_WITH(NULL, stop, failing_memory_is_told)
{
    start("");
    struct text_http *http = open_http(url, 5000);
    check(text_http_write(http, "a", spans, 3, &err), &err);
    text_http_close(http);
    int64_t used = pi_mem_used(PI_MEM_OTHER);
    for (int32_t n = 1;; n++) {
        struct text_hits hits = {0};
        http = NULL;
        pi_mem_fail_at(n, false);
        pith_status status = text_http_open(url, 5000, &http, &err);
        if (status == PITH_OK)
            status = text_http_find(http, "a", "code", 4, &ranking, &hits, &err);
        pi_mem_fail_at(0, false);
        assert_true(status == PITH_OK ? hits.n == 2 : status == PITH_NOMEM);
        text_hits_free(&hits);
        text_http_close(http);
        assert_int_equal(pi_mem_used(PI_MEM_OTHER), used);
        if (status == PITH_OK) {
            assert_true(n > 4);
            return;
        }
    }
}
