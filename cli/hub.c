/*
 * hub.c - the hub over libcurl and Jansson: the list of a repository's files, and files in pieces.
 *
 * Invariants: redirects are followed here and not by libcurl. So the token goes to the hub's own
 * host and port alone whatever libcurl's version does. A file is named NAME.SUM.part until all of
 * its bytes are there and their sum is SUM, so nothing else is ever gone on from.
 */
#define _POSIX_C_SOURCE 200809L

#include "hub.h"

#include <ctype.h>
#include <curl/curl.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "io.h"
#include "session.h"
#include "sha256.h"

#define ENDPOINT "https://huggingface.co"
#define MOST_LIST ((size_t)64 << 20) /* bytes of a list of files */
#define MOST_PAGES 1000
#define MOST_SIZE ((int64_t)1 << 46) /* bytes of a file, so that sums of many can be counted */
#define MOST_HOPS 10
#define MOST_TRIES 5   /* in a row that bring no byte */
#define FIRST_WAIT 0.5 /* seconds before the second try; twice as many before each later one */
#define SILENCE_S 60L  /* without a byte the connection is given up */

/* ---- addresses ---- */

struct hub {
    const char *repo; /* for sentences; borrowed */
    char *endpoint;   /* without slashes at its end */
    const char *token;
    CURL *curl;
    char *next; /* page of the list that follows, from the header Link; NULL: none */
};

static bool is_offline(void)
{
    const char *text = getenv("HF_HUB_OFFLINE");
    return text != NULL && text[0] != '\0' && strcmp(text, "0") != 0;
}

static char *copy(const char *text, size_t len)
{
    char *out = cli_alloc(len + 1, 1);
    memcpy(out, text, len);
    return out;
}

static bool is_http(const char *url)
{
    return strncasecmp(url, "http://", 7) == 0 || strncasecmp(url, "https://", 8) == 0;
}

static struct hub hub_open(const char *repo)
{
    const char *endpoint = getenv("HF_ENDPOINT"), *token = getenv("HF_TOKEN");
    struct hub hub = {.repo = repo};
    if (is_offline())
        cli_fail("%s: it is not here, and HF_HUB_OFFLINE forbids to fetch it", repo);
    if (endpoint == NULL || endpoint[0] == '\0')
        endpoint = ENDPOINT;
    const char *host = strstr(endpoint, "://");
    if (!is_http(endpoint) || strspn(host, ":/") == strlen(host))
        cli_fail("HF_ENDPOINT: \"%.100s\" is not like https://HOST", endpoint);
    size_t len = strlen(endpoint);
    while (endpoint[len - 1] == '/')
        len--;
    hub.endpoint = copy(endpoint, len);
    hub.token = token != NULL && token[0] != '\0' ? token : NULL;
    if (hub.token != NULL && strpbrk(token, " \t\r\n") != NULL)
        cli_fail("HF_TOKEN: it has a blank or an end of a line, which no token has");
    if (curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK || (hub.curl = curl_easy_init()) == NULL)
        cli_fail("no memory for HTTP");
    return hub;
}

static void hub_close(struct hub *hub)
{
    curl_easy_cleanup(hub->curl);
    free(hub->endpoint);
    free(hub->next);
}

/* A path within the repository as a part of an address. */
static char *escape(const struct hub *hub, const char *path)
{
    char *out = cli_alloc(3 * strlen(path) + 1, 1), *at = out;
    while (*path != '\0') {
        size_t len = strcspn(path, "/");
        char *part = len > 0 ? curl_easy_escape(hub->curl, path, (int)len) : NULL;
        if (len > 0 && part == NULL)
            cli_fail("no memory for an address");
        at = stpcpy(at, part != NULL ? part : "");
        curl_free(part);
        path += len;
        if (*path == '/')
            *at++ = *path++;
    }
    return out;
}

/* ---- one request ---- */

typedef bool data_fn(void *user, long status, const char *data, size_t len);

struct request {
    struct hub *hub;
    int64_t from; /* first byte that is wanted */
    data_fn *on_data;
    void *user;
    bool stopped; /* on_data said so */
    long status;
    CURLcode code;
    char error[CURL_ERROR_SIZE];
};

static size_t on_body(char *data, size_t size, size_t n, void *user)
{
    struct request *r = user;
    curl_easy_getinfo(r->hub->curl, CURLINFO_RESPONSE_CODE, &r->status);
    if (r->status >= 300) /* a page for people */
        return size * n;
    r->stopped = !r->on_data(r->user, r->status, data, size * n);
    return r->stopped ? 0 : size * n;
}

/* "Link: <https://HOST/...>; rel="next"" names the page that follows. */
static size_t on_header(char *data, size_t size, size_t n, void *user)
{
    struct request *r = user;
    char *line = copy(data, size * n), *begin = strchr(line, '<'), *end = strchr(line, '>');
    if (strncasecmp(line, "link:", 5) == 0 && begin != NULL && end > begin &&
        strstr(end, "rel=\"next\"") != NULL) {
        free(r->hub->next);
        r->hub->next = copy(begin + 1, (size_t)(end - begin - 1));
    }
    free(line);
    return size * n;
}

static int on_time(void *user, curl_off_t a, curl_off_t b, curl_off_t c, curl_off_t d)
{
    (void)user, (void)a, (void)b, (void)c, (void)d;
    return cli_interrupted();
}

/* Whether an address is at the hub's own host and port. */
static bool is_hub(const struct hub *hub, const char *url)
{
    static const CURLUPart parts[] = {CURLUPART_SCHEME, CURLUPART_HOST, CURLUPART_PORT};
    CURLU *one = curl_url(), *other = curl_url();
    bool same = one != NULL && other != NULL &&
                curl_url_set(one, CURLUPART_URL, hub->endpoint, 0) == CURLUE_OK &&
                curl_url_set(other, CURLUPART_URL, url, 0) == CURLUE_OK;
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]) && same; i++) {
        char *a = NULL, *b = NULL;
        same = curl_url_get(one, parts[i], &a, CURLU_DEFAULT_PORT) == CURLUE_OK &&
               curl_url_get(other, parts[i], &b, CURLU_DEFAULT_PORT) == CURLUE_OK &&
               strcasecmp(a, b) == 0;
        curl_free(a);
        curl_free(b);
    }
    curl_url_cleanup(one);
    curl_url_cleanup(other);
    return same;
}

static struct curl_slist *make_headers(const struct hub *hub, const char *url)
{
    struct curl_slist *list = NULL;
    if (hub->token == NULL || !is_hub(hub, url))
        return NULL;
    char *line = cli_alloc(strlen(hub->token) + 32, 1);
    sprintf(line, "Authorization: Bearer %s", hub->token);
    list = curl_slist_append(NULL, line);
    free(line);
    if (list == NULL)
        cli_fail("no memory for a request");
    return list;
}

/* One hop. */
static void perform(struct request *r, const char *url)
{
    CURL *curl = r->hub->curl;
    char range[32];
    struct curl_slist *headers = make_headers(r->hub, url);
    curl_easy_reset(curl);
    curl_easy_setopt(curl, CURLOPT_URL, url);
    curl_easy_setopt(curl, CURLOPT_USERAGENT, "pith");
    curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers);
    curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT, 30L);
    curl_easy_setopt(curl, CURLOPT_LOW_SPEED_LIMIT, 1L);
    curl_easy_setopt(curl, CURLOPT_LOW_SPEED_TIME, SILENCE_S);
    curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, r->error);
    curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, on_body);
    curl_easy_setopt(curl, CURLOPT_WRITEDATA, r);
    curl_easy_setopt(curl, CURLOPT_HEADERFUNCTION, on_header);
    curl_easy_setopt(curl, CURLOPT_HEADERDATA, r);
    curl_easy_setopt(curl, CURLOPT_XFERINFOFUNCTION, on_time);
    curl_easy_setopt(curl, CURLOPT_NOPROGRESS, 0L);
    snprintf(range, sizeof(range), "%lld-", (long long)r->from);
    if (r->from > 0)
        curl_easy_setopt(curl, CURLOPT_RANGE, range);
    r->error[0] = '\0';
    r->status = 0;
    r->code = curl_easy_perform(curl);
    curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &r->status);
    if (r->code == CURLE_OK)
        snprintf(r->error, sizeof(r->error), "HTTP %ld", r->status);
    else if (r->error[0] == '\0')
        snprintf(r->error, sizeof(r->error), "%s", curl_easy_strerror(r->code));
    curl_slist_free_all(headers);
}

/* Nothing but HTTP is followed, and no TLS is given up. */
static void check_safe(const struct hub *hub, const char *from, const char *to)
{
    if (!is_http(to) || (strncasecmp(from, "https:", 6) == 0 && strncasecmp(to, "https:", 6) != 0))
        cli_fail("%s: the hub leads to \"%.100s\", which is not safe to follow", hub->repo, to);
}

/* Asks for an address and for where it leads. */
static void ask(struct request *r, const char *first)
{
    char *url = copy(first, strlen(first));
    for (int hop = 0;; hop++) {
        char *to = NULL;
        perform(r, url);
        if (cli_interrupted()) {
            cli_progress_hide();
            cli_note("stopped; the same command goes on from there");
            cli_exit(EXIT_INTERRUPTED);
        }
        bool leads = r->status >= 301 && r->status <= 308 && r->status != 304;
        if (r->code != CURLE_OK || !leads)
            break;
        curl_easy_getinfo(r->hub->curl, CURLINFO_REDIRECT_URL, &to);
        if (to == NULL || hop == MOST_HOPS)
            cli_fail("%s: the hub redirects too often, or to nowhere (HTTP %ld)", r->hub->repo,
                     r->status);
        check_safe(r->hub, url, to);
        to = copy(to, strlen(to));
        free(url);
        url = to;
    }
    free(url);
}

/* Whether another try may help. */
static bool is_passing(const struct request *r)
{
    if (r->status == 429 || r->status >= 500)
        return true;
    switch (r->code) {
    case CURLE_OK:
        return r->status == 200 || r->status == 206; /* and yet not all came */
    case CURLE_UNSUPPORTED_PROTOCOL:
    case CURLE_URL_MALFORMAT:
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CACERT_BADFILE:
        return false;
    default:
        return r->code != CURLE_WRITE_ERROR || !r->stopped;
    }
}

/* Why a request failed. what: the file, or NULL. */
_Noreturn static void fail(const struct request *r, const char *what)
{
    const char *repo = r->hub->repo, *between = what != NULL ? ": " : "";
    what = what != NULL ? what : "";
    if (r->status == 401 || r->status == 403)
        cli_fail("%s%s%s: the hub refuses it (HTTP %ld): the name is wrong, or it wants %s", repo,
                 between, what, r->status,
                 r->hub->token != NULL ? "another token than that of HF_TOKEN, or that you accept "
                                         "the model's terms"
                                       : "a token, which HF_TOKEN gives");
    if (r->status == 404)
        cli_fail("%s%s%s: there is no such thing at %s (HTTP 404)", repo, between, what,
                 r->hub->endpoint);
    if (r->status >= 400 || r->code == CURLE_OK)
        cli_fail("%s%s%s: the hub answers with HTTP %ld", repo, between, what, r->status);
    cli_fail("%s%s%s: %s cannot be reached: %s", repo, between, what, r->hub->endpoint, r->error);
}

static void wait_before(int n_try)
{
    double until = clock_s() + FIRST_WAIT * (double)(1 << n_try);
    while (clock_s() < until && !cli_interrupted())
        nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
}

/* ---- the list ---- */

/* Bytes that a text of len has: twice as many, time and again. */
static size_t room_of(size_t len)
{
    size_t room = 4096;
    while (room < len)
        room *= 2;
    return room;
}

static bool collect(void *user, long status, const char *data, size_t len)
{
    struct cli_text *text = user;
    (void)status;
    if (text->len + len > MOST_LIST)
        return false;
    if (text->data == NULL || room_of(text->len + len) > room_of(text->len)) {
        char *grown = realloc(text->data, room_of(text->len + len));
        if (grown == NULL)
            return false;
        text->data = grown;
    }
    memcpy(text->data + text->len, data, len);
    text->len += len;
    return true;
}

/* Whether a path stays within its folder, and can be printed as a line. */
static bool is_inside(const char *path)
{
    for (const char *at = path; *at != '\0'; at++)
        if ((unsigned char)*at < ' ' || *at == 0x7f)
            return false;
    for (const char *at = path;; at++) {
        size_t len = strcspn(at, "/");
        if (len == 0 || (at[0] == '.' && (len == 1 || (len == 2 && at[1] == '.'))))
            return false;
        at += len;
        if (*at == '\0')
            return strchr(path, '\\') == NULL;
    }
}

/* 64 hexadecimal digits, in small letters then. */
static bool read_sum(const json_t *text, char sum[65])
{
    const char *digits = json_string_value(text);
    if (digits == NULL || strlen(digits) != 64 || strspn(digits, "0123456789abcdefABCDEF") != 64)
        return false;
    for (size_t i = 0; i <= 64; i++)
        sum[i] = (char)tolower((unsigned char)digits[i]);
    return true;
}

static void add_file(struct hub_list *list, const json_t *entry)
{
    const char *type = json_string_value(json_object_get(entry, "type"));
    const char *path = json_string_value(json_object_get(entry, "path"));
    const json_t *lfs = json_object_get(entry, "lfs");
    if (type == NULL || strcmp(type, "file") != 0 || path == NULL || !is_inside(path))
        return;
    struct hub_file *grown = realloc(list->file, (list->n + 1) * sizeof(*grown));
    if (grown == NULL)
        cli_fail("no memory for a list of %zu files", list->n + 1);
    list->file = grown;
    struct hub_file *file = &list->file[list->n++];
    *file = (struct hub_file){.path = copy(path, strlen(path))};
    const json_t *size = json_object_get(json_is_object(lfs) ? lfs : entry, "size");
    file->size = json_is_integer(size) ? json_integer_value(size) : -1;
    if (file->size > MOST_SIZE)
        file->size = -1;
    file->bad_sum = json_is_object(lfs) && !read_sum(json_object_get(lfs, "oid"), file->sum);
}

static int compare(const void *a, const void *b)
{
    return strcmp(((const struct hub_file *)a)->path, ((const struct hub_file *)b)->path);
}

/* One page, with as many tries as it takes. */
static json_t *get_page(struct hub *hub, const char *url)
{
    for (int n_try = 0;; n_try++) {
        struct cli_text text = {0};
        struct request r = {.hub = hub, .on_data = collect, .user = &text};
        ask(&r, url);
        if (r.code == CURLE_OK && r.status == 200) {
            json_error_t why;
            json_t *page = json_loadb(text.data != NULL ? text.data : "", text.len, 0, &why);
            free(text.data);
            if (!json_is_array(page))
                cli_fail("%s: what %s answers is no list of files", hub->repo, hub->endpoint);
            return page;
        }
        free(text.data);
        if (r.stopped)
            cli_fail("%s: the hub's list of files is larger than %zu MiB", hub->repo,
                     MOST_LIST >> 20);
        if (!is_passing(&r) || n_try + 1 == MOST_TRIES)
            fail(&r, NULL);
        wait_before(n_try);
    }
}

struct hub_list hub_list(const char *repo)
{
    struct hub hub = hub_open(repo);
    struct hub_list list = {0};
    char *url = cli_alloc(strlen(hub.endpoint) + strlen(repo) + 64, 1);
    sprintf(url, "%s/api/models/%s/tree/main?recursive=true", hub.endpoint, repo);
    for (int n_page = 0; url != NULL; n_page++) {
        const json_t *entry;
        size_t i;
        json_t *page = get_page(&hub, url);
        json_array_foreach(page, i, entry) add_file(&list, entry);
        json_decref(page);
        if (hub.next != NULL && (n_page == MOST_PAGES || strcmp(hub.next, url) == 0))
            cli_fail("%s: the hub's list of files has no end", repo);
        if (hub.next != NULL)
            check_safe(&hub, url, hub.next);
        free(url);
        url = hub.next;
        hub.next = NULL;
    }
    hub_close(&hub);
    if (list.n > 0)
        qsort(list.file, list.n, sizeof(*list.file), compare);
    return list;
}

void hub_list_free(struct hub_list *list)
{
    for (size_t i = 0; i < list->n; i++)
        free(list->file[i].path);
    free(list->file);
    *list = (struct hub_list){0};
}

/* ---- a file ---- */

struct download {
    const char *repo;
    const struct hub_file *file;
    char *path; /* of the part */
    int fd;
    int64_t n;    /* bytes that are there and in the sum */
    bool resumes; /* the running request asked for the rest, and nothing has come yet */
    struct sha256 sum;
    struct cli_progress bar;
    bool too_long;
};

static void restart(struct download *d)
{
    if (ftruncate(d->fd, 0) != 0 || lseek(d->fd, 0, SEEK_SET) < 0)
        cli_fail("cannot write \"%s\": %s", d->path, strerror(errno));
    d->n = 0;
    sha256_start(&d->sum);
}

static bool show(struct download *d)
{
    double size = d->file->size > 0 ? (double)d->file->size : 1.0;
    return cli_progress_step(&d->bar, (double)d->n / size);
}

static bool keep(void *user, long status, const char *data, size_t len)
{
    struct download *d = user;
    if (d->resumes && status != 206) /* all of it is sent again */
        restart(d);
    d->resumes = false;
    d->too_long = d->n + (int64_t)len > d->file->size;
    if (d->too_long)
        return false;
    for (size_t done = 0; done < len;) {
        ssize_t n = write(d->fd, data + done, len - done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0) {
            int why = errno;
            cli_fail("cannot write \"%s\": %s; %lld of %lld bytes are there, and the same command "
                     "goes on from them",
                     d->path, strerror(why), (long long)d->n, (long long)d->file->size);
        }
        done += (size_t)n;
        sha256_add(&d->sum, data + done - (size_t)n, (size_t)n);
        d->n += n;
    }
    return show(d);
}

/* Adds the bytes of an earlier call to the sum. */
static void read_part(struct download *d)
{
    static char block[1 << 16];
    ssize_t n;
    sha256_start(&d->sum);
    while ((n = read(d->fd, block, sizeof(block))) > 0) {
        sha256_add(&d->sum, block, (size_t)n);
        d->n += n;
        if (cli_interrupted())
            cli_exit(EXIT_INTERRUPTED);
    }
    if (n < 0)
        cli_fail("cannot read \"%s\": %s", d->path, strerror(errno));
    if (d->n > d->file->size)
        restart(d);
}

/* The name until all is there; the caller frees. */
static char *part_path(const struct hub_file *file, const char *to)
{
    char *path = cli_alloc(strlen(to) + 32, 1);
    sprintf(path, "%s.%.16s.part", to, file->sum[0] != '\0' ? file->sum : "unchecked");
    return path;
}

int64_t hub_part_bytes(const struct hub_file *file, const char *to)
{
    struct stat st;
    char *path = part_path(file, to);
    int64_t bytes = stat(path, &st) == 0 ? (int64_t)st.st_blocks * 512 : 0;
    free(path);
    return bytes;
}

/* Without a sum nothing is gone on from. */
static void open_part(struct download *d, const char *to)
{
    d->path = part_path(d->file, to);
    d->fd = open(d->path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (d->fd < 0)
        cli_fail("cannot write \"%s\": %s", d->path, strerror(errno));
    if (d->file->sum[0] != '\0')
        read_part(d);
    else
        restart(d);
}

static void check_sum(struct download *d)
{
    char digits[65];
    sha256_digits(&d->sum, digits);
    if (d->n == d->file->size && (d->file->sum[0] == '\0' || strcmp(digits, d->file->sum) == 0))
        return;
    unlink(d->path);
    if (d->n != d->file->size)
        cli_fail("%s: %s: more bytes came than the %lld that the hub names; the file was removed",
                 d->repo, d->file->path, (long long)d->file->size);
    cli_fail("%s: %s: the sum of the received file is %s, not %s; the file was removed", d->repo,
             d->file->path, digits, d->file->sum);
}

static void fetch_rest(struct hub *hub, struct download *d, const char *url)
{
    for (int n_try = 0; d->n < d->file->size;) {
        int64_t before = d->n;
        struct request r = {.hub = hub, .from = d->n, .on_data = keep, .user = d};
        d->resumes = d->n > 0;
        ask(&r, url);
        if (d->too_long)
            return;
        if (r.status == 416 && before > 0) { /* what is there is not of this file */
            restart(d);
        } else if (d->n == d->file->size) {
            return;
        } else if (!is_passing(&r)) {
            fail(&r, d->file->path);
        }
        n_try = d->n > before ? 1 : n_try + 1;
        if (n_try == MOST_TRIES && r.status >= 400)
            fail(&r, d->file->path);
        if (n_try == MOST_TRIES)
            cli_fail("%s: %s: %s at %lld of %lld bytes (%s); the same command goes on from there",
                     d->repo, d->file->path,
                     r.code == CURLE_OK ? "the hub's answer ends" : "the connection broke",
                     (long long)d->n, (long long)d->file->size, r.error);
        wait_before(n_try - 1);
    }
}

void hub_fetch(const char *repo, const struct hub_file *file, const char *to)
{
    struct hub hub = hub_open(repo);
    struct download d = {.repo = repo, .file = file};
    char what[160], *escaped = escape(&hub, file->path);
    const char *slash = strrchr(file->path, '/');
    char *url = cli_alloc(strlen(hub.endpoint) + strlen(repo) + strlen(escaped) + 64, 1);
    snprintf(what, sizeof(what), "pulling %.140s", slash != NULL ? slash + 1 : file->path);
    sprintf(url, "%s/%s/resolve/main/%s", hub.endpoint, repo, escaped);
    d.bar = (struct cli_progress){.what = what, .on = cli_progress_wanted(), .bytes = file->size};
    open_part(&d, to);
    show(&d);
    fetch_rest(&hub, &d, url);
    cli_progress_end(&d.bar);
    check_sum(&d);
    if (fsync(d.fd) != 0 || close(d.fd) != 0 || rename(d.path, to) != 0)
        cli_fail("cannot write \"%s\": %s", to, strerror(errno));
    free(d.path);
    free(url);
    free(escaped);
    hub_close(&hub);
}
