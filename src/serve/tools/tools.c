/*
 * tools.c - the parser of answers: memory, what is told and when, and text in which markers are
 * looked for. Calls are tools_call.c's and tools_params.c's, gpt-oss's channels tools_harmony.c's.
 * A text is taken byte by byte, so its pieces cannot matter; told is at the end of each piece.
 */
#include "serve/tools/tools_parser.h"

#include <stdio.h>

#include "base/hash.h"
#include "base/mem.h"
#include "base/utf8.h"

/* ---- bytes ---- */

void tools_append(struct serve_tools *t, struct tools_bytes *to, const char *text, size_t len)
{
    if (to->len + len > to->cap) {
        size_t cap = to->cap * 2 + len + 64;
        char *data = pi_mem_grow(PI_MEM_OTHER, to->data, cap, 1);
        if (data == NULL) {
            t->no_memory = true;
            return;
        }
        to->data = data;
        to->cap = cap;
    }
    if (len > 0)
        memcpy(to->data + to->len, text, len);
    to->len += len;
}

void tools_drop(struct tools_bytes *b, size_t n)
{
    if (n > 0 && n < b->len)
        memmove(b->data, b->data + n, b->len - n);
    b->len -= n;
}

bool tools_ends_with(const struct tools_bytes *b, const char *text)
{
    size_t n = strlen(text);
    return b->len >= n && memcmp(b->data + b->len - n, text, n) == 0;
}

bool tools_is_prefix(const struct tools_bytes *b, const char *text)
{
    return b->len <= strlen(text) && (b->len == 0 || memcmp(b->data, text, b->len) == 0);
}

/* ---- telling ---- */

/* Calls beyond the only one that is wanted are read, so that they are no content, and not told. */
static bool is_told(const struct serve_tools *t, const struct serve_tools_event *event)
{
    bool call = event->type != SERVE_TOOLS_CONTENT && event->type != SERVE_TOOLS_REASONING;
    return !(call && t->options.one_call && event->index > 0);
}

static void send(struct serve_tools *t, const struct serve_tools_event *event)
{
    if (t->options.on_event != NULL && is_told(t, event))
        t->options.on_event(t->options.user, event);
}

/* Tells the first n bytes that were collected. */
static void send_text(struct serve_tools *t, size_t n)
{
    if (n == 0)
        return;
    send(t, &(struct serve_tools_event){
                .type = t->out_type, .index = t->n_call - 1, .text = t->out.data, .len = n});
    tools_drop(&t->out, n);
}

/* Bytes at the end that are the beginning of a character. */
static size_t unfinished(const struct tools_bytes *b)
{
    for (size_t n = 1; n <= 3 && n <= b->len; n++) {
        uint8_t c = (uint8_t)b->data[b->len - n];
        if (c >= 0xc0)
            return pi_utf8_next(b->data + b->len - n, n).cut ? n : 0;
        if (c < 0x80)
            return 0;
    }
    return 0;
}

/* JSON in a fence loses that: a line begins with a backtick nowhere else. */
static void unfence(struct serve_tools *t, char c)
{
    bool line = t->fence == TOOLS_FENCE_LINE;
    if (t->fence == TOOLS_FENCE_UNKNOWN)
        t->fence = c == '`' ? TOOLS_FENCE_OPENS : TOOLS_FENCE_NONE;
    if (t->fence == TOOLS_FENCE_OPENS) {
        t->fence = c == '\n' ? TOOLS_FENCE_IN : TOOLS_FENCE_OPENS;
        return;
    }
    if (line)
        t->fence = c == '`' ? TOOLS_FENCE_CLOSED : TOOLS_FENCE_IN;
    if (t->fence == TOOLS_FENCE_CLOSED)
        return;
    if (line)
        tools_append(t, &t->out, "\n", 1);
    if (t->fence == TOOLS_FENCE_IN && c == '\n')
        t->fence = TOOLS_FENCE_LINE;
    else
        tools_append(t, &t->out, &c, 1);
}

void tools_tell(struct serve_tools *t, enum serve_tools_event_type type, const char *text,
                size_t len)
{
    if (len == 0)
        return;
    if (t->out_type != type)
        send_text(t, t->out.len);
    t->out_type = type;
    if (type != SERVE_TOOLS_CONTENT || !t->options.whole)
        tools_append(t, &t->out, text, len);
    for (size_t i = 0; i < len && type == SERVE_TOOLS_CONTENT && t->options.whole; i++)
        unfence(t, text[i]);
}

static void send_call(struct serve_tools *t, enum serve_tools_event_type type, bool complete)
{
    send_text(t, t->out.len);
    send(t, &(struct serve_tools_event){.type = type,
                                        .index = t->n_call - 1,
                                        .id = t->id,
                                        .name = t->name,
                                        .complete = complete});
}

/* Ids are such as the family's template takes back: Mistral's have nine letters and digits, Kimi's
   say which function. */
static void make_id(struct serve_tools *t)
{
    static const char digits[] = "0123456789abcdefghijklmnopqrstuvwxyz";
    enum serve_tool_form form = t->form->form;
    if (form == SERVE_TOOLS_KIMI) {
        snprintf(t->id, sizeof t->id, "functions.%.100s:%d", t->name, t->n_call - 1);
        return;
    }
    if (form != SERVE_TOOLS_MISTRAL && form != SERVE_TOOLS_MISTRAL_ARGS) {
        snprintf(t->id, sizeof t->id, "call_%.100s_%d", t->request_id, t->n_call - 1);
        return;
    }
    uint64_t hash = pi_hash_bytes(PI_HASH_EMPTY, t->request_id, strlen(t->request_id));
    hash = hash % (UINT64_C(1) << 46) + (uint64_t)t->n_call; /* neighbours differ */
    for (int i = 8; i >= 0; i--, hash /= 36)
        t->id[i] = digits[hash % 36];
    t->id[9] = 0;
}

bool tools_call_start(struct serve_tools *t)
{
    if (t->bare && !tools_knows(t, t->name))
        return false;
    if (t->options.sure)
        send_text(t, t->out.len);
    t->n_call++;
    t->started = true;
    t->call.len = 0;
    make_id(t);
    if (t->options.sure)
        send_call(t, SERVE_TOOLS_CALL_START, false);
    return true;
}

void tools_call_args(struct serve_tools *t, const char *text, size_t len)
{
    if (t->options.sure)
        tools_tell(t, SERVE_TOOLS_CALL_ARGS, text, len);
    else
        tools_append(t, &t->call, text, len);
}

void tools_call_end(struct serve_tools *t, bool complete)
{
    if (!t->options.sure) {
        send_call(t, SERVE_TOOLS_CALL_START, false);
        tools_tell(t, SERVE_TOOLS_CALL_ARGS, t->call.data, t->call.len);
    }
    send_call(t, SERVE_TOOLS_CALL_END, complete);
    t->n_complete += complete && !(t->options.one_call && t->n_call > 1);
    t->n_section++;
    t->raw.len = 0;
    tools_call_reset(t);
    t->state = TOOLS_BETWEEN;
}

/* ---- text with markers ---- */

/* Bytes at the end of b, all but all of a marker, that one of markers may begin with. */
static size_t may_begin(const struct tools_bytes *b, const char *const *markers, int n)
{
    size_t best = 0;
    for (int i = 0; i < n; i++) {
        size_t len = strlen(markers[i]);
        for (size_t k = len - 1 < b->len ? len - 1 : b->len; k > best; k--)
            if (memcmp(b->data + b->len - k, markers[i], k) == 0)
                best = k;
    }
    return best;
}

/* Tells the first n bytes that are held. */
static void tell_held(struct serve_tools *t, size_t n, enum serve_tools_event_type type)
{
    size_t from = 0;
    if (n == 0)
        return;
    while (t->trim && from < n && pi_is_space(t->held.data[from]))
        from++;
    if (from < n) {
        t->trim = false;
        t->after_call = false;
    }
    tools_tell(t, type, t->held.data + from, n - from);
    tools_drop(&t->held, n);
}

/* The start of white space that ends at `end`. All of the white space that was known to come
   first is taken at once, so that long stretches cost no more than short ones. */
static size_t space_before(const struct serve_tools *t, size_t end)
{
    while (end > t->n_space && pi_is_space(t->held.data[end - 1]))
        end--;
    return end <= t->n_space ? 0 : end;
}

int tools_text_step(struct serve_tools *t, char c, const char *const *markers, int n,
                    enum serve_tools_event_type type, bool keep_space)
{
    tools_append(t, &t->held, &c, 1);
    for (int i = 0; i < n; i++) {
        if (!tools_ends_with(&t->held, markers[i]))
            continue;
        size_t from = space_before(t, t->held.len - strlen(markers[i]));
        tell_held(t, from, type);
        t->n_space = t->held.len - strlen(markers[i]);
        return i;
    }
    size_t from = t->held.len - may_begin(&t->held, markers, n);
    if (keep_space)
        from = space_before(t, from);
    tell_held(t, from, type);
    if (from > 0 || !keep_space)
        t->n_space = 0;
    while (keep_space && t->n_space < t->held.len && pi_is_space(t->held.data[t->n_space]))
        t->n_space++;
    return from > 0 ? TOOLS_TOLD : TOOLS_NO_MARKER;
}

void tools_text_flush(struct serve_tools *t, enum serve_tools_event_type type)
{
    bool space = t->n_space == t->held.len;
    if (!space || !(t->trim || t->after_call || type == SERVE_TOOLS_REASONING))
        tell_held(t, t->held.len, type);
    t->held.len = 0;
    t->n_space = 0;
}

static void clear_held(struct serve_tools *t)
{
    t->held.len = 0;
    t->n_space = 0;
}

static void think_step(struct serve_tools *t, char c)
{
    t->thought = true;
    if (tools_text_step(t, c, &t->style.think_close, 1, SERVE_TOOLS_REASONING, true) < 0)
        return;
    clear_held(t);
    t->trim = true;
    t->state = TOOLS_START;
}

/* Markers of calls: where they are constrained the grammar's triggers alone, else also a fence,
   which Qwen2.5-Coder prefers. */
static int call_markers(const struct serve_tools *t, const char *markers[TOOLS_MARKER_MAX])
{
    int n = 0;
    int32_t n_trigger, n_first;
    const char *const *trigger =
        serve_tools_triggers(t->form->form, t->options.thinking, &n_trigger, &n_first);
    if (t->options.constrained && trigger != NULL) {
        bool alone = t->state == TOOLS_START && !t->thought && !t->options.no_alone;
        int32_t least = alone ? 0 : n_first;
        for (int32_t i = n_trigger; i-- > least;) /* the longer of two that end alike */
            markers[n++] = trigger[i];
        return n;
    }
    for (size_t i = 0; i < PI_LEN(t->form->open) && t->form->open[i] != NULL; i++)
        markers[n++] = t->form->open[i];
    if (t->form->bare)
        markers[n++] = "```json";
    return n;
}

/* Markers that may come in content: of calls, and at its beginning of reasoning. */
static int content_markers(const struct serve_tools *t, const char *markers[TOOLS_MARKER_MAX])
{
    bool calls = t->calls && (!t->options.whole || t->state == TOOLS_START || t->after_call);
    int n = calls ? call_markers(t, markers) : 0;
    if (t->state != TOOLS_START)
        return n;
    if (!t->options.reasoning_is_text) {
        markers[n++] = t->style.think_open;
        markers[n++] = t->style.think_close; /* of no reasoning: it says nothing */
    }
    return n;
}

static void step(struct serve_tools *t, char c);

/* A marker that is the beginning of an object, or a tag with that: the object is read as it is. */
static void begin_with_object(struct serve_tools *t, const char *object)
{
    t->held.len -= strlen(object);
    tools_section_begin(t, NULL, true);
    for (; *object != '\0'; object++)
        step(t, *object);
}

static void begin_section(struct serve_tools *t, const char *marker)
{
    const char *object = t->options.constrained ? strchr(marker, '{') : NULL;
    if (object != NULL)
        begin_with_object(t, object);
    else
        tools_section_begin(t, marker, strcmp(marker, "```json") == 0);
}

static void content_step(struct serve_tools *t, char c)
{
    const char *markers[TOOLS_MARKER_MAX];
    int n = content_markers(t, markers);
    bool start = t->state == TOOLS_START;
    if (start && t->calls && t->form->bare && !t->options.constrained && c == '{' &&
        t->n_space == t->held.len) {
        tools_section_begin(t, NULL, true);
        tools_call_step(t, c);
        return;
    }
    int i = tools_text_step(t, c, markers, n, SERVE_TOOLS_CONTENT, n > 0);
    if (i == TOOLS_TOLD)
        t->state = TOOLS_TEXT;
    if (i < 0)
        return;
    bool opens = markers[i] == t->style.think_open;
    if (!opens && markers[i] != t->style.think_close) {
        begin_section(t, markers[i]);
        return;
    }
    t->thought = true;
    clear_held(t);
    t->trim = true;
    t->state = opens ? TOOLS_THINK : TOOLS_START;
}

/* ---- steps ---- */

static void step(struct serve_tools *t, char c)
{
    if (t->state == TOOLS_CHANNEL_HEAD || t->state == TOOLS_CHANNEL_TEXT) {
        tools_harmony_step(t, c);
        return;
    }
    if (t->state == TOOLS_THINK) {
        think_step(t, c);
        return;
    }
    if (t->state == TOOLS_START || t->state == TOOLS_TEXT) {
        content_step(t, c);
        return;
    }
    size_t n_raw = t->raw.len;
    size_t n_word = t->word.len;
    if (tools_call_step(t, c) || t->no_memory)
        return;
    t->raw.len = n_raw;
    t->word.len = n_word;
    tools_broken(t);
    step(t, c); /* as text: never back here */
}

void tools_broken(struct serve_tools *t)
{
    char word[TOOLS_HEAD_MAX];
    size_t n = t->word.len < sizeof word ? t->word.len : sizeof word;
    if (n > 0)
        memcpy(word, t->word.data + t->word.len - n, n);
    if (t->started && t->options.sure) { /* no grammar lets that happen; what was told stays so */
        send_call(t, SERVE_TOOLS_CALL_END, false);
        t->raw.len = n;
    } else if (t->started) {
        t->n_call--;
    }
    bool told = t->raw.len > n;
    tools_tell(t, SERVE_TOOLS_CONTENT, t->raw.data, t->raw.len - n);
    t->after_call = t->n_section > 0 && !told;
    t->trim = false;
    t->raw.len = 0;
    tools_call_reset(t);
    if (t->form->form == SERVE_TOOLS_GPT_OSS) {
        t->state = TOOLS_CHANNEL_TEXT;
        t->channel = SERVE_TOOLS_CONTENT;
        t->channel_call = false;
        return;
    }
    t->state = TOOLS_TEXT;
    for (size_t i = 0; i < n; i++)
        step(t, word[i]);
}

/* ---- public ---- */

pith_status serve_tools_create(const struct serve_tools_style *style,
                               const struct serve_tools_options *options, struct serve_tools **out,
                               pith_error *err)
{
    const char *id = options->request_id == NULL ? "" : options->request_id;
    struct serve_tools *t = pi_mem_alloc(PI_MEM_OTHER, sizeof *t);
    *out = NULL;
    if (t == NULL)
        return pi_fail(err, PITH_NOMEM, "no memory for the reader of an answer");
    t->request_id = pi_mem_strndup(PI_MEM_OTHER, id, strlen(id));
    if (t->request_id == NULL) {
        pi_mem_free(t);
        return pi_fail(err, PITH_NOMEM, "no memory for the reader of an answer");
    }
    t->form = tools_form_of(style->form);
    t->style = *style;
    t->options = *options;
    t->calls = json_array_size(options->tools) > 0;
    t->trim = options->thinking;
    t->state = options->thinking && !options->reasoning_is_text ? TOOLS_THINK : TOOLS_START;
    if (t->form->form == SERVE_TOOLS_GPT_OSS)
        t->state = TOOLS_CHANNEL_HEAD;
    *out = t;
    return PITH_OK;
}

void serve_tools_free(struct serve_tools *t)
{
    if (t == NULL)
        return;
    struct tools_bytes *bytes[] = {&t->out,  &t->held, &t->raw,   &t->word,
                                   &t->head, &t->args, &t->value, &t->call};
    for (size_t i = 0; i < PI_LEN(bytes); i++)
        pi_mem_free(bytes[i]->data);
    pi_mem_free(t->name);
    pi_mem_free(t->request_id);
    pi_mem_free(t);
}

static pith_status result(const struct serve_tools *t, pith_error *err)
{
    return t->no_memory ? pi_fail(err, PITH_NOMEM, "no memory to read the answer's calls")
                        : PITH_OK;
}

pith_status serve_tools_feed(struct serve_tools *t, const char *text, size_t len, pith_error *err)
{
    for (size_t i = 0; i < len && !t->no_memory; i++)
        step(t, text[i]);
    if (!t->no_memory)
        send_text(t, t->out.len - unfinished(&t->out));
    return result(t, err);
}

bool serve_tools_in_call(const struct serve_tools *t)
{
    return (t->state >= TOOLS_BETWEEN && t->state < TOOLS_CHANNEL_HEAD) ||
           (t->state == TOOLS_CHANNEL_TEXT && t->channel_call);
}

/* A value whose end never came, though its closing tag did, but not on a line of its own. The
   call is read once more, and less strictly. */
static void read_again(struct serve_tools *t)
{
    struct tools_bytes text = t->raw;
    if (t->state != TOOLS_VALUE || !t->loose || t->lenient || t->options.sure)
        return;
    t->raw = (struct tools_bytes){0};
    t->n_call -= t->started;
    t->lenient = true;
    t->state = t->n_section > 0 ? TOOLS_BETWEEN : TOOLS_TEXT;
    tools_call_reset(t);
    for (size_t i = 0; i < text.len && !t->no_memory; i++)
        step(t, text.data[i]);
    pi_mem_free(text.data);
}

pith_status serve_tools_finish(struct serve_tools *t, bool cut, pith_error *err)
{
    if (!t->no_memory)
        read_again(t);
    if (t->no_memory)
        return result(t, err);
    bool in_call = t->state >= TOOLS_BETWEEN && t->state < TOOLS_CHANNEL_HEAD;
    if (in_call && t->started && cut) {
        tools_call_end(t, false);
        t->state = TOOLS_TEXT;
    } else if (in_call) {
        size_t n = cut && tools_call_closes(t) ? t->word.len : 0;
        bool space = true;
        for (size_t i = 0; i + n < t->raw.len; i++)
            space = space && pi_is_space(t->raw.data[i]);
        if (space)
            tools_section_end(t);
        else
            tools_broken(t);
    }
    if (t->state == TOOLS_CHANNEL_HEAD || t->state == TOOLS_CHANNEL_TEXT)
        tools_harmony_finish(t, cut);
    else
        tools_text_flush(t, t->state == TOOLS_THINK ? SERVE_TOOLS_REASONING : SERVE_TOOLS_CONTENT);
    send_text(t, t->out.len);
    return result(t, err);
}

int32_t serve_tools_count(const struct serve_tools *t)
{
    return t->n_complete;
}
