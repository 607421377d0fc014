/*
 * chat.c - chat templates as rows of a table: the marks that a template's text is recognised by,
 * and the texts that stand around messages. No template language is interpreted. The rows follow
 * the templates that the models' authors published, for messages without tools; BOS is left out
 * where a template starts with it, because the tokenizer adds it where the model wants one.
 */
#include "base/utf8.h"
#include "text/chat.h"

enum role { SYSTEM, USER, ASSISTANT, N_ROLE };

/* Where the first message goes when it is a system message. Others are turns of their own. */
enum system_place {
    OWN_TURN,
    FIRST_USER, /* in front of the first user message */
    LAST_USER,  /* in front of the last message if that is the user's, else nowhere */
};

/* What happens to an assistant's message that has a thinking block. */
enum thinking {
    KEEP,       /* nothing: the model does not think */
    DROP,       /* thoughts are left out */
    DROP_PAST,  /* the same, but not those of the last message */
    DROP_QWEN3, /* the same, and the last message always has a block of thoughts */
};

#define MARK_MAX 4

struct chat_template {
    const char *name;
    const char *with[MARK_MAX];    /* all stand in the template's text */
    const char *without[MARK_MAX]; /* none does */
    const char *open[N_ROLE];
    const char *close[N_ROLE];
    const char *generate;       /* opens the assistant's answer */
    const char *no_thinking;    /* behind it: an empty thinking block; NULL: there is none */
    const char *finish;         /* ends a text that is not to be continued; NULL: nothing */
    const char *default_system; /* the system message where there is none; NULL: no such turn */
    const char *system_head;    /* stands in front of every system message; NULL: nothing */
    const char *next_open;      /* open[USER] of later turns; NULL: the same */
    enum system_place system;
    enum thinking thinking;
    bool trim[N_ROLE]; /* white space around messages goes... */
    bool trim_joined;  /* ...but not between a system message and the user's that carries it */
};

#define CHATML_OPEN                                                                                \
    {                                                                                              \
        "<|im_start|>system\n", "<|im_start|>user\n", "<|im_start|>assistant\n"                    \
    }
#define CHATML_CLOSE                                                                               \
    {                                                                                              \
        "<|im_end|>\n", "<|im_end|>\n", "<|im_end|>\n"                                             \
    }
#define CHATML_GENERATE "<|im_start|>assistant\n"
#define LLAMA3_OPEN                                                                                \
    {                                                                                              \
        "<|start_header_id|>system<|end_header_id|>\n\n",                                          \
            "<|start_header_id|>user<|end_header_id|>\n\n",                                        \
            "<|start_header_id|>assistant<|end_header_id|>\n\n"                                    \
    }
#define LLAMA3_CLOSE                                                                               \
    {                                                                                              \
        "<|eot_id|>", "<|eot_id|>", "<|eot_id|>"                                                   \
    }
#define LLAMA3_GENERATE "<|start_header_id|>assistant<|end_header_id|>\n\n"
#define END_THOUGHT "\n</think>\n\n"
#define EMPTY_THOUGHT "<think>\n" END_THOUGHT

/* U+FF5C and U+2581 stand in the names of DeepSeek's tokens. */
#define DEEPSEEK_TOKEN(name) "<\xef\xbd\x9c" name "\xef\xbd\x9c>"
#define DEEPSEEK_USER DEEPSEEK_TOKEN("User")
#define DEEPSEEK_ASSISTANT DEEPSEEK_TOKEN("Assistant")
#define DEEPSEEK_END DEEPSEEK_TOKEN("end\xe2\x96\x81of\xe2\x96\x81sentence")

/* The first row whose marks fit is the template's: the more special stand first. */
static const struct chat_template templates[] = {
    {
        .name = "phi4",
        .with = {"<|im_start|>", "<|im_sep|>"},
        .open = {"<|im_start|>system<|im_sep|>", "<|im_start|>user<|im_sep|>",
                 "<|im_start|>assistant<|im_sep|>"},
        .close = {"<|im_end|>", "<|im_end|>", "<|im_end|>"},
        .generate = "<|im_start|>assistant<|im_sep|>",
    },
    {
        .name = "qwen3",
        .with = {"<|im_start|>", "last_query_index", "enable_thinking is false"},
        .without = {"{{- '<think>\\n' }}"},
        .open = CHATML_OPEN,
        .close = CHATML_CLOSE,
        .generate = CHATML_GENERATE,
        .no_thinking = EMPTY_THOUGHT,
        .thinking = DROP_QWEN3,
    },
    {
        .name = "qwen3-thinking",
        .with = {"<|im_start|>", "last_query_index", "<|im_start|>assistant\\n<think>\\n'"},
        .without = {"enable_thinking"},
        .open = CHATML_OPEN,
        .close = CHATML_CLOSE,
        .generate = CHATML_GENERATE "<think>\n",
        .no_thinking = END_THOUGHT,
        .thinking = DROP_QWEN3,
    },
    {
        .name = "qwq",
        .with = {"<|im_start|>assistant\\n<think>\\n'", "split('</think>')[-1]"},
        .without = {"last_query_index", "reasoning_content"},
        .open = CHATML_OPEN,
        .close = CHATML_CLOSE,
        .generate = CHATML_GENERATE "<think>\n",
        .no_thinking = END_THOUGHT,
        .thinking = DROP_PAST,
    },
    {
        .name = "qwen2.5",
        .with = {"<|im_start|>", "You are Qwen, created by Alibaba Cloud."},
        .without = {"</think>"},
        .open = CHATML_OPEN,
        .close = CHATML_CLOSE,
        .generate = CHATML_GENERATE,
        .default_system = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.",
    },
    {
        .name = "qwen2",
        .with = {"<|im_start|>", "You are a helpful assistant."},
        .without = {"</think>", "You are Qwen"},
        .open = CHATML_OPEN,
        .close = CHATML_CLOSE,
        .generate = CHATML_GENERATE,
        .default_system = "You are a helpful assistant.",
    },
    {
        .name = "smollm2",
        .with = {"<|im_start|>", "named SmolLM, trained by Hugging Face"},
        .without = {"</think>"},
        .open = CHATML_OPEN,
        .close = CHATML_CLOSE,
        .generate = CHATML_GENERATE,
        .default_system = "You are a helpful AI assistant named SmolLM, trained by Hugging Face",
    },
    {
        .name = "chatml",
        .with = {"<|im_start|>", "<|im_end|>"},
        .without = {"</think>", "<end_of_utterance>"},
        .open = CHATML_OPEN,
        .close = CHATML_CLOSE,
        .generate = CHATML_GENERATE,
    },
    {
        .name = "llama3.1",
        .with = {"<|start_header_id|>", "<|eot_id|>", "Cutting Knowledge Date: December 2023"},
        .without = {"{# version="},
        .open = LLAMA3_OPEN,
        .close = LLAMA3_CLOSE,
        .generate = LLAMA3_GENERATE,
        .default_system = "",
        /* The date that the template falls back to: the same prompt today and tomorrow. */
        .system_head = "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n",
        .trim = {true, true, true},
    },
    {
        .name = "llama3",
        .with = {"<|start_header_id|>", "<|eot_id|>"},
        .without = {"{# version=", "message_roles"},
        .open = LLAMA3_OPEN,
        .close = LLAMA3_CLOSE,
        .generate = LLAMA3_GENERATE,
        .trim = {true, true, true},
    },
    {
        .name = "llama2",
        .with = {"[INST]", "<<SYS>>"},
        .open = {"<<SYS>>\n", "[INST] ", " "},
        .close = {"\n<</SYS>>\n\n", " [/INST]", " </s>"},
        .generate = "",
        .next_open = "<s>[INST] ",
        .system = FIRST_USER,
        .trim = {false, true, true},
        .trim_joined = true,
    },
    {
        .name = "mistral-v7-tekken",
        .with = {"[INST]", "'[SYSTEM_PROMPT]'"},
        .open = {"[SYSTEM_PROMPT]", "[INST]", ""},
        .close = {"[/SYSTEM_PROMPT]", "[/INST]", "</s>"},
        .generate = "",
    },
    {
        .name = "mistral-v7",
        .with = {"[INST]", "[SYSTEM_PROMPT] "},
        .open = {"[SYSTEM_PROMPT] ", "[INST] ", " "},
        .close = {"[/SYSTEM_PROMPT]", "[/INST]", "</s>"},
        .generate = "",
    },
    {
        .name = "mistral-v3-tekken",
        .with = {"\"[INST]\"", "[AVAILABLE_TOOLS]"},
        .open = {"", "[INST]", ""},
        .close = {"\n\n", "[/INST]", "</s>"},
        .generate = "",
        .system = LAST_USER,
    },
    {
        .name = "mistral-v3",
        .with = {"\"[INST] \"", "[AVAILABLE_TOOLS]"},
        .open = {"", "[INST] ", " "},
        .close = {"\n\n", "[/INST]", "</s>"},
        .generate = "",
        .system = LAST_USER,
        .trim = {false, false, true},
    },
    {
        .name = "mistral-v1",
        .with = {"' [INST] '", "' [/INST]'"},
        .open = {"", " [INST] ", " "},
        .close = {"\n\n", " [/INST]", "</s>"},
        .generate = "",
        .system = FIRST_USER,
    },
    {
        .name = "mistral",
        .with = {"'[INST] '", "' [/INST]'"},
        .open = {"", "[INST] ", ""},
        .close = {"\n\n", " [/INST]", "</s>"},
        .generate = "",
        .system = FIRST_USER,
    },
    {
        .name = "gemma",
        .with = {"<start_of_turn>", "<end_of_turn>"},
        .open = {"", "<start_of_turn>user\n", "<start_of_turn>model\n"},
        .close = {"\n\n", "<end_of_turn>\n", "<end_of_turn>\n"},
        .generate = "<start_of_turn>model\n",
        .system = FIRST_USER,
        .trim = {false, true, true},
    },
    {
        .name = "phi3",
        .with = {"<|assistant|>", "<|end|>"},
        .without = {"<think>", "<|begin", "available_tools_string"},
        .open = {"<|system|>\n", "<|user|>\n", "<|assistant|>\n"},
        .close = {"<|end|>\n", "<|end|>\n", "<|end|>\n"},
        .generate = "<|assistant|>\n",
        .finish = "<|endoftext|>",
    },
    {
        .name = "zephyr",
        .with = {"'<|user|>", "message['content'] + eos_token", "<|assistant|>"},
        .without = {"<|end|>"},
        .open = {"<|system|>\n", "<|user|>\n", "<|assistant|>\n"},
        .close = {"</s>\n", "</s>\n", "</s>\n"},
        .generate = "<|assistant|>\n",
    },
    {
        .name = "deepseek-r1",
        .with = {DEEPSEEK_USER "' + message['content']}}", DEEPSEEK_ASSISTANT "<think>\\n",
                 "'</think>' in content"},
        .open = {"", DEEPSEEK_USER, DEEPSEEK_ASSISTANT},
        .close = {"", "", DEEPSEEK_END},
        .generate = DEEPSEEK_ASSISTANT "<think>\n",
        .no_thinking = END_THOUGHT,
        .thinking = DROP,
    },
    {
        /* The first text of R1, which leaves it to the model to start thinking. */
        .name = "deepseek-r1-2501",
        .with = {DEEPSEEK_USER, DEEPSEEK_ASSISTANT, DEEPSEEK_END, "'</think>' in content"},
        .without = {"<think>"},
        .open = {"", DEEPSEEK_USER, DEEPSEEK_ASSISTANT},
        .close = {"", "", DEEPSEEK_END},
        .generate = DEEPSEEK_ASSISTANT,
        .no_thinking = EMPTY_THOUGHT,
        .thinking = DROP,
    },
    {
        .name = "deepseek",
        .with = {DEEPSEEK_USER, DEEPSEEK_ASSISTANT, DEEPSEEK_END},
        .without = {"think>"},
        .open = {"", DEEPSEEK_USER, DEEPSEEK_ASSISTANT},
        .close = {"", "", DEEPSEEK_END},
        .generate = DEEPSEEK_ASSISTANT,
    },
    {
        .name = "deepseek-v2",
        .with = {"'User: '", "'Assistant: ' + message['content'] + eos_token"},
        .open = {"", "User: ", "Assistant: "},
        .close = {"\n\n", "\n\n", DEEPSEEK_END},
        .generate = "Assistant:",
    },
};

/* ---- recognition ---- */

static bool contains(const char *text, size_t len, const char *mark)
{
    size_t mark_len = strlen(mark);
    const char *end = text + len;
    while (len >= mark_len) {
        const char *at = memchr(text, mark[0], len - mark_len + 1);
        if (at == NULL)
            return false;
        if (memcmp(at, mark, mark_len) == 0)
            return true;
        text = at + 1;
        len = (size_t)(end - text);
    }
    return false;
}

static bool fits(const struct chat_template *t, const char *text, size_t len)
{
    for (size_t i = 0; i < MARK_MAX; i++) {
        if (t->with[i] != NULL && !contains(text, len, t->with[i]))
            return false;
        if (t->without[i] != NULL && contains(text, len, t->without[i]))
            return false;
    }
    return true;
}

const char *pi_chat_detect(const char *text, size_t len)
{
    for (size_t i = 0; i < PI_LEN(templates); i++) {
        if (fits(&templates[i], text, len))
            return templates[i].name;
    }
    return NULL;
}

const char *pi_chat_name(int32_t i)
{
    return i >= 0 && i < (int32_t)PI_LEN(templates) ? templates[i].name : NULL;
}

/* ---- rendering ---- */

/* The text so far; what lies beyond cap is counted only. */
struct output {
    char *data; /* [cap], the caller's */
    size_t cap, len;
};

static void put(struct output *out, const char *text, size_t len)
{
    if (out->len <= out->cap && len <= out->cap - out->len && len > 0)
        memcpy(out->data + out->len, text, len);
    out->len += len;
}

static void put_text(struct output *out, const char *text)
{
    if (text != NULL)
        put(out, text, strlen(text));
}

/* A part of a message. */
struct span {
    const char *text;
    size_t len;
};

static bool is_line_end(char c)
{
    return c == '\n';
}

static struct span trim_left(struct span s, bool (*drop)(char))
{
    while (s.len > 0 && drop(s.text[0])) {
        s.text++;
        s.len--;
    }
    return s;
}

static struct span trim_right(struct span s, bool (*drop)(char))
{
    while (s.len > 0 && drop(s.text[s.len - 1]))
        s.len--;
    return s;
}

#define THINK_OPEN "<think>"
#define THINK_CLOSE "</think>"

/* Splits an answer at its last </think>; returns false when there is none. thoughts are those of
   the first block, without its <think>. */
static bool split_thoughts(const char *content, struct span *thoughts, struct span *answer)
{
    const char *first = strstr(content, THINK_CLOSE), *last = first, *next;
    if (first == NULL)
        return false;
    while ((next = strstr(last + 1, THINK_CLOSE)) != NULL)
        last = next;
    answer->text = last + strlen(THINK_CLOSE);
    answer->len = strlen(answer->text);
    const char *begin = content;
    while ((next = strstr(begin, THINK_OPEN)) != NULL && next < first)
        begin = next + strlen(THINK_OPEN);
    *thoughts = (struct span){begin, (size_t)(first - begin)};
    return true;
}

struct chat {
    const struct chat_template *t;
    const pith_message *messages; /* [n] */
    int32_t n;
    int32_t last_question; /* index of the last user message, n where there is none */
};

/* Qwen3: thoughts are shown behind the last question only, by the last message in any case. */
static void put_qwen3_answer(struct output *out, const struct chat *chat, int32_t i)
{
    const char *content = chat->messages[i].content;
    struct span answer = {content, strlen(content)}, thoughts = {"", 0};
    if (split_thoughts(content, &thoughts, &answer))
        answer = trim_left(answer, is_line_end);
    thoughts = trim_right(trim_left(thoughts, is_line_end), is_line_end);
    if (i > chat->last_question && (i == chat->n - 1 || thoughts.len > 0)) {
        put_text(out, "<think>\n");
        put(out, thoughts.text, thoughts.len);
        put_text(out, END_THOUGHT);
        answer = trim_left(answer, is_line_end);
    }
    put(out, answer.text, answer.len);
}

/* carried: behind a system message in the same turn. */
static void put_content(struct output *out, const struct chat *chat, int32_t i, enum role role,
                        bool carried)
{
    const struct chat_template *t = chat->t;
    const char *content = chat->messages[i].content;
    struct span whole = {content, strlen(content)}, thoughts;
    if (role == ASSISTANT && t->thinking == DROP_QWEN3) {
        put_qwen3_answer(out, chat, i);
        return;
    }
    if (role == ASSISTANT && t->thinking == DROP)
        split_thoughts(content, &thoughts, &whole);
    if (role == ASSISTANT && t->thinking == DROP_PAST && i < chat->n - 1) {
        split_thoughts(content, &thoughts, &whole);
        whole = trim_left(whole, is_line_end);
    }
    if (t->trim[role] && !(carried && t->trim_joined))
        whole = trim_left(whole, pi_is_space);
    if (t->trim[role])
        whole = trim_right(whole, pi_is_space);
    put(out, whole.text, whole.len);
}

static bool role_of(const char *name, enum role *out)
{
    static const char *const names[N_ROLE] = {"system", "user", "assistant"};
    for (int role = 0; role < N_ROLE; role++) {
        if (name != NULL && strcmp(name, names[role]) == 0) {
            *out = (enum role)role;
            return true;
        }
    }
    return false;
}

/* A system message inside of a user message: message 0 into message i. */
static bool carries_system(const struct chat *chat, int32_t i)
{
    enum role role;
    if (chat->t->system == OWN_TURN || chat->n == 0 || !role_of(chat->messages[0].role, &role) ||
        role != SYSTEM)
        return false;
    return chat->t->system == FIRST_USER ? i == 1 : i == chat->n - 1;
}

static void put_turn(struct output *out, const struct chat *chat, int32_t i, enum role role)
{
    const struct chat_template *t = chat->t;
    if (role == SYSTEM && t->system != OWN_TURN)
        return;
    bool carries = role == USER && carries_system(chat, i);
    if (role == USER && i > 1 && t->next_open != NULL)
        put_text(out, t->next_open);
    else
        put_text(out, t->open[role]);
    if (carries) {
        put_text(out, t->open[SYSTEM]);
        put_content(out, chat, 0, SYSTEM, false);
        put_text(out, t->close[SYSTEM]);
    }
    if (role == SYSTEM)
        put_text(out, t->system_head);
    put_content(out, chat, i, role, carries);
    put_text(out, t->close[role]);
}

/* Roles, contents, and a system message where only the first may be one. */
static pith_status check(const struct chat *chat, pith_error *err)
{
    for (int32_t i = 0; i < chat->n; i++) {
        const pith_message *m = &chat->messages[i];
        enum role role;
        if (!role_of(m->role, &role))
            return pi_fail(err, PITH_INVALID,
                           "messages[%d].role: \"%.40s\" is none of system, user, assistant", i,
                           m->role != NULL ? m->role : "NULL");
        if (m->content == NULL)
            return pi_fail(err, PITH_INVALID, "messages[%d].content: is NULL", i);
        if (role == SYSTEM && i > 0 && chat->t->system != OWN_TURN)
            return pi_fail(err, PITH_INVALID,
                           "messages[%d].role: in template \"%s\" only the first may be system", i,
                           chat->t->name);
    }
    return PITH_OK;
}

static bool is_tool_response(const char *content)
{
    const char *open = "<tool_response>", *close = "</tool_response>";
    size_t len = strlen(content), close_len = strlen(close);
    return strncmp(content, open, strlen(open)) == 0 && len >= close_len &&
           strcmp(content + len - close_len, close) == 0;
}

/* What a tool answered is no question, though it comes as the user's message. */
static int32_t last_question(const pith_message *messages, int32_t n)
{
    for (int32_t i = n - 1; i >= 0; i--) {
        if (strcmp(messages[i].role, "user") == 0 && !is_tool_response(messages[i].content))
            return i;
    }
    return n;
}

static void render(struct output *out, const struct chat *chat, uint32_t flags)
{
    const struct chat_template *t = chat->t;
    enum role role;
    bool has_system = chat->n > 0 && strcmp(chat->messages[0].role, "system") == 0;
    if (!has_system && t->default_system != NULL) {
        put_text(out, t->open[SYSTEM]);
        put_text(out, t->system_head);
        put_text(out, t->default_system);
        put_text(out, t->close[SYSTEM]);
    }
    for (int32_t i = 0; i < chat->n; i++) {
        if (role_of(chat->messages[i].role, &role))
            put_turn(out, chat, i, role);
    }
    if ((flags & PITH_CHAT_GENERATE) == 0) {
        put_text(out, t->finish);
        return;
    }
    put_text(out, t->generate);
    if ((flags & PITH_CHAT_NO_THINKING) != 0)
        put_text(out, t->no_thinking);
}

static const struct chat_template *find_template(const char *name)
{
    for (size_t i = 0; name != NULL && i < PI_LEN(templates); i++) {
        if (strcmp(templates[i].name, name) == 0)
            return &templates[i];
    }
    return NULL;
}

pith_status pi_chat_render(const char *name, const pith_message *messages, int32_t n_message,
                           uint32_t flags, char *out, size_t cap, size_t *len, pith_error *err)
{
    struct chat chat = {.t = find_template(name), .messages = messages, .n = n_message};
    if (chat.t == NULL)
        return pi_fail(err, PITH_INVALID, "chat template: \"%.60s\" is none that Pith knows",
                       name != NULL ? name : "NULL");
    if (n_message < 0 || (messages == NULL && n_message > 0) || len == NULL)
        return pi_fail(err, PITH_INVALID, "messages: NULL, or n_message %d", n_message);
    PI_TRY(check(&chat, err));
    chat.last_question = last_question(messages, n_message);
    struct output text = {.data = out, .cap = cap};
    render(&text, &chat, flags);
    *len = text.len;
    if (text.len > cap)
        return pi_fail(err, PITH_RANGE, "cap: %zu bytes do not hold the prompt's %zu", cap,
                       text.len);
    return PITH_OK;
}
