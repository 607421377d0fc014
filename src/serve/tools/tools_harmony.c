/*
 * tools_harmony.c - gpt-oss's messages: a head that names channel and recipient, then text up to a
 * marker. Analysis is reasoning, commentary to functions.X a call, all other text content.
 *
 *     <|channel|>analysis<|message|>...<|end|><|start|>assistant<|channel|>commentary
 *     to=functions.X <|constrain|>json<|message|>{...}<|call|>
 */
#include "serve/tools/tools_parser.h"

#include "base/utf8.h"

static const char *const ends[] = {"<|end|>", "<|return|>", "<|call|>", "<|start|>", "<|channel|>"};
/* Words that a head may begin with. */
static const char *const begins[] = {
    "<|start|>", "<|channel|>", "assistant", "to=", "<|end|>", "<|call|>", "<|return|>"};

static const char *find(const struct tools_bytes *b, const char *what)
{
    size_t n = strlen(what);
    for (size_t i = 0; i + n <= b->len; i++)
        if (memcmp(b->data + i, what, n) == 0)
            return b->data + i;
    return NULL;
}

/* Whether what has come of a head can be one. */
static bool may_be_head(const struct serve_tools *t)
{
    struct tools_bytes b = t->raw;
    while (b.len > 0 && pi_is_space(*b.data)) {
        b.data++;
        b.len--;
    }
    bool good = b.len == 0;
    for (size_t i = 0; i < PI_LEN(begins); i++) {
        size_t n = strlen(begins[i]);
        struct tools_bytes start = {.data = b.data, .len = b.len < n ? b.len : n};
        good = good || tools_is_prefix(&start, begins[i]);
    }
    return good && t->raw.len <= TOOLS_HEAD_MAX;
}

static void begin_head(struct serve_tools *t)
{
    t->raw.len = 0;
    t->state = TOOLS_CHANNEL_HEAD;
}

static void begin_text(struct serve_tools *t, enum serve_tools_event_type type)
{
    t->state = TOOLS_CHANNEL_TEXT;
    t->channel = type;
    t->channel_call = false;
}

/* The recipient's name, where the head has a function for one; end: of the head's text. */
static const char *recipient(const struct serve_tools *t, size_t *len)
{
    static const char to[] = "to=functions.";
    const char *name = find(&t->raw, to);
    if (name == NULL)
        return NULL;
    name += sizeof to - 1;
    const char *end = t->raw.data + t->raw.len;
    *len = 0;
    while (name + *len < end && !pi_is_space(name[*len]) && name[*len] != '<')
        ++*len;
    return name;
}

static void head_ends(struct serve_tools *t)
{
    size_t len = 0;
    const char *name = recipient(t, &len);
    bool to_other = name == NULL && find(&t->raw, "to=") != NULL;
    tools_call_reset(t);
    if (to_other || (name != NULL && !t->calls) ||
        (name != NULL && !tools_call_named(t, name, len))) {
        tools_broken(t); /* to a tool that is not the request's: content, markers and all */
        return;
    }
    if (name != NULL) {
        t->bare = t->as_json = false;
        t->state = TOOLS_CHANNEL_TEXT;
        t->channel_call = true;
        return;
    }
    bool reasons = find(&t->raw, "<|channel|>analysis") != NULL && !t->options.reasoning_is_text;
    t->raw.len = 0;
    begin_text(t, reasons ? SERVE_TOOLS_REASONING : SERVE_TOOLS_CONTENT);
}

static void head_step(struct serve_tools *t, char c)
{
    tools_append(t, &t->raw, &c, 1);
    if (tools_ends_with(&t->raw, "<|message|>")) {
        head_ends(t);
    } else if (!may_be_head(t)) {
        tools_tell(t, SERVE_TOOLS_CONTENT, t->raw.data, t->raw.len);
        t->raw.len = 0;
        begin_text(t, SERVE_TOOLS_CONTENT);
    }
}

/* The arguments of a call. */
static void call_step(struct serve_tools *t, char c)
{
    bool first = t->json.depth == 0;
    if (first && pi_is_space(c)) {
        tools_append(t, &t->raw, &c, 1);
        return;
    }
    size_t n_raw = t->raw.len;
    bool good = !first || (c == '{' && tools_call_start(t));
    if (good && tools_object_step(t, c)) {
        if (t->state == TOOLS_BETWEEN)
            begin_head(t);
        return;
    }
    if (t->no_memory)
        return;
    t->raw.len = n_raw;
    tools_broken(t);
    tools_harmony_step(t, c); /* as text */
}

void tools_harmony_step(struct serve_tools *t, char c)
{
    if (t->state == TOOLS_CHANNEL_HEAD) {
        head_step(t, c);
        return;
    }
    if (t->channel_call) {
        call_step(t, c);
        return;
    }
    int i = tools_text_step(t, c, ends, (int)PI_LEN(ends), t->channel, false);
    if (i < 0)
        return;
    begin_head(t);
    tools_append(t, &t->raw, ends[i], strlen(ends[i]));
    t->held.len = 0;
    t->n_space = 0;
}

/* Markers that end a message, and white space, say nothing at the end of an answer. */
static bool says_nothing(const struct tools_bytes *b)
{
    size_t i = 0;
    while (i < b->len) {
        size_t n = pi_is_space(b->data[i]);
        for (size_t k = 0; k < PI_LEN(ends); k++) {
            size_t len = strlen(ends[k]);
            if (len <= b->len - i && memcmp(b->data + i, ends[k], len) == 0)
                n = len;
        }
        if (n == 0)
            return false;
        i += n;
    }
    return true;
}

void tools_harmony_finish(struct serve_tools *t, bool cut)
{
    if (t->state == TOOLS_CHANNEL_TEXT && !t->channel_call) {
        tools_tell(t, t->channel, t->held.data, t->held.len);
        t->held.len = 0;
    } else if (t->channel_call && t->state == TOOLS_CHANNEL_TEXT && t->started && cut) {
        tools_call_end(t, false);
    } else if (!says_nothing(&t->raw)) {
        tools_broken(t);
    }
    t->raw.len = 0;
}
