/*
 * Conversations with `pith chat`: through a pipe, and on a terminal of our own making, where
 * Ctrl-C must stop the answer and leave the program.
 */
#define _XOPEN_SOURCE 700

#include <fcntl.h>
#include <jansson.h>
#include <poll.h>
#include <stdbool.h>
#include <string.h>
#include <sys/stat.h>
#include <termios.h>
#include <time.h>

#include "testing.h"

#include "command.h"

TEST_GROUP(folder_make, folder_remove);

#define MODEL PITH_SOURCE_DIR "/models/pith-nano.gguf"
#define ON_MODEL "-m", MODEL, "-t", "1", "--chat-template", "chatml"
#define END_TOKEN "981-inf" /* banned, the model's answers do not end */
#define PATIENCE_S 60

/* ---- through a pipe ---- */

/* The answers of a conversation equal the answers of `run` to the same prompts rendered whole. So
   the entries kept from turn to turn changed nothing. */
TEST(turns_equal_whole_prompts)
{
    char prompt[1024], expected[1024];
    struct said s = command("Where is Maria?\nWho is Anton?\n", "chat", ON_MODEL, "--temp", "0",
                            "-n", "12", NULL);
    assert_int_equal(s.status, 0);
    struct said first = command(NULL, "run", ON_MODEL, "--chat", "-p", "Where is Maria?", "--temp",
                                "0", "-n", "12", "-q", NULL);
    snprintf(prompt, sizeof(prompt),
             "<|im_start|>user\nWhere is Maria?<|im_end|>\n<|im_start|>assistant\n%s<|im_end|>\n"
             "<|im_start|>user\nWho is Anton?<|im_end|>\n<|im_start|>assistant\n",
             first.out);
    struct said second = command(NULL, "run", "-m", MODEL, "-t", "1", "-p", prompt,
                                 "--parse-special", "--temp", "0", "-n", "12", "-q", NULL);
    assert_true(first.out_len > 0 && second.out_len > 0);
    snprintf(expected, sizeof(expected), "%s\n%s\n", first.out, second.out);
    assert_string_equal(s.out, expected);
}

TEST(slash_commands_act_and_typos_get_a_hint)
{
    struct said s =
        command("/help\n/kv\n/rest\n/save\n/reset now\n\nHello \\\nthere\n/reset\n/quit\n"
                "never read\n",
                "chat", ON_MODEL, "--temp", "0", "-n", "4", "--stats", NULL);
    assert_int_equal(s.status, 0);
    expect_word(s.err, "/save  FILE");
    expect_word(s.err, "KV memory");
    expect_word(s.err, "/rest: there is no such command; did you mean /reset");
    expect_word(s.err, "/save takes the name of a file");
    expect_word(s.err, "/reset takes no argument");
    expect_word(s.err, "tokens/s");
    expect_word(s.err, "starts over");
    assert_null(strstr(s.err, "never"));
    assert_ptr_equal(strchr(s.out, '\n'), s.out + s.out_len - 1); /* one answer */
}

/* It is said at the start, by the option's name, and not at the first message. */
TEST(a_broken_template_is_refused_at_the_start)
{
    char path[128];
    write_file(in_folder("broken.jinja", path), "{% if %}");
    struct said s = command("", "chat", "-m", MODEL, "-t", "1", "--chat-template-file", path, NULL);
    expect_failure(&s, 1, "--chat-template-file: chat template: line 1: ");
    write_file(path, "{{ raise_exception('No tools, no talk.') }}");
    s = command("", "chat", "-m", MODEL, "-t", "1", "--chat-template-file", path, NULL);
    expect_status(&s, 0);
    expect_word(s.err, "--chat-template-file: a message alone is refused: No tools, no talk.");
}

TEST(a_saved_talk_goes_on)
{
    char path[128], kv[128], input[512];
    struct stat st;
    in_folder("talk.json", path);
    in_folder("talk.json.kv", kv);
    snprintf(input, sizeof(input), "Where is Maria?\n/save %s\nWho is Anton?\n", path);
    struct said a = command(input, "chat", ON_MODEL, "--temp", "0", "-n", "12", NULL);
    assert_int_equal(a.status, 0);
    expect_word(a.err, "saved 2 messages");
    json_t *list = json_load_file(path, 0, NULL);
    assert_int_equal(json_array_size(list), 2);
    json_decref(list);
    assert_int_equal(stat(kv, &st), 0);

    snprintf(input, sizeof(input), "/load %s\nWho is Anton?\n", path);
    for (int round = 0; round < 3; round++) {
        struct said b = command(input, "chat", ON_MODEL, "--temp", "0", "-n", "12", NULL);
        assert_int_equal(b.status, 0);
        expect_word(b.err, round == 0 ? "and the KV of" : "to be read again");
        expect_word(a.out, b.out); /* the second answer, as if nothing had happened */
        if (round == 0) {          /* a damaged snapshot, then none, cost time only */
            FILE *file = fopen(kv, "r+b");
            fseek(file, st.st_size / 2, SEEK_SET);
            fputs("damage", file);
            fclose(file);
        } else {
            remove(kv);
        }
    }

    FILE *file = fopen(path, "w");
    fputs("[{\"role\": \"user\"}]", file);
    fclose(file);
    a = command(input, "chat", ON_MODEL, "--temp", "0", "-n", "2", NULL);
    expect_word(a.err, "message 0 has no role or no content");
    assert_int_equal(a.status, 0);
}

static void copy_file(const char *from, const char *to)
{
    static char block[1 << 16];
    FILE *in = fopen(from, "rb"), *out = fopen(to, "wb");
    assert_true(in != NULL && out != NULL);
    for (size_t n; (n = fread(block, 1, sizeof(block), in)) > 0;)
        assert_int_equal(fwrite(block, 1, n, out), n);
    fclose(in);
    assert_int_equal(fclose(out), 0);
}

/* The model is mapped while the chat runs: a write to its file would end both. */
TEST(saving_never_replaces_what_the_chat_reads)
{
    const char *text = "/save would replace \"";
    char model[128], kv[128], input[512];
    struct stat before, after;
    in_folder("y.kv", model);
    in_folder("y", kv);
    copy_file(MODEL, model);
    assert_int_equal(stat(model, &before), 0);
    snprintf(input, sizeof(input), "hi\n/save %s\n/save %s\nhi again\n", model, kv);
    struct said s = command(input, "chat", "-m", model, "-t", "1", "--chat-template", "chatml",
                            "-n", "4", "--temp", "0", "--history", "", NULL);
    assert_int_equal(s.status, 0);
    expect_word(s.err, text);
    assert_non_null(strstr(strstr(s.err, text) + 1, text));
    assert_null(strstr(s.err, "saved"));
    assert_int_equal(stat(model, &after), 0);
    assert_int_equal(after.st_ino, before.st_ino);
    assert_int_equal(after.st_size, before.st_size);
    assert_int_not_equal(stat(kv, &after), 0);
}

static json_t *saved_messages(const char *path)
{
    json_t *list = json_load_file(path, 0, NULL);
    assert_non_null(list);
    return list;
}

static const char *content_of(const json_t *list, size_t i)
{
    return json_string_value(json_object_get(json_array_get(list, i), "content"));
}

/* Of a model in several files the command line names the first. */
TEST(saving_never_replaces_a_part_of_the_model)
{
    char model[128], part[128], input[512];
    struct stat st;
    in_folder("m-00001-of-00003.gguf", model);
    in_folder("m-00003-of-00003.gguf", part);
    copy_file(MODEL, model);
    write_file(part, "kept");
    snprintf(input, sizeof(input), "hi\n/save %s\n", part);
    struct said s = command(input, "chat", "-m", model, "-t", "1", "--chat-template", "chatml",
                            "-n", "4", "--temp", "0", "--history", "", NULL);
    expect_status(&s, 0);
    expect_word(s.err, "/save would replace \"");
    assert_int_equal(stat(part, &st), 0);
    assert_int_equal(st.st_size, 4);
}

TEST(the_last_line_is_taken_whatever_ends_it)
{
    char path[128], input[256];
    struct said s = command("Hello\\", "chat", ON_MODEL, "--temp", "0", "-n", "4", NULL);
    struct said same = command("Hello\n", "chat", ON_MODEL, "--temp", "0", "-n", "4", NULL);
    expect_status(&s, 0);
    assert_true(s.out_len > 1);
    assert_string_equal(s.out, same.out);
    snprintf(input, sizeof(input), "Hello\r\nyou \\\r\nthere\r\n/save %s\r\n/quit\r\nnever\r\n",
             in_folder("lines.json", path));
    s = command(input, "chat", ON_MODEL, "--temp", "0", "-n", "4", NULL);
    expect_status(&s, 0);
    expect_word(s.err, "saved 4 messages");
    json_t *list = saved_messages(path);
    assert_string_equal(content_of(list, 0), "Hello");
    assert_string_equal(content_of(list, 2), "you \nthere");
    json_decref(list);
    /* An argument that a command does not take is no word of it. */
    s = command("/quit now\nHello\n", "chat", ON_MODEL, "--temp", "0", "-n", "4", NULL);
    expect_word(s.err, "/quit takes no argument");
    assert_true(s.out_len > 1);
}

/* It would end a text in C: half a message is never sent. */
TEST(a_zero_byte_is_refused)
{
    static const char input[] = "hello\0world\nHello\n";
    const char *words[] = {"chat", ON_MODEL, "--temp", "0", "-n", "4", NULL};
    char text[4096] = "";
    FILE *in = tmpfile(), *out = tmpfile(), *log = tmpfile();
    assert_int_equal(fwrite(input, 1, sizeof(input) - 1, in), sizeof(input) - 1);
    rewind(in);
    assert_int_equal(command_wait(command_start(words, fileno(in), fileno(out), fileno(log))), 0);
    rewind(log);
    assert_true(fread(text, 1, sizeof(text) - 1, log) > 0);
    expect_word(text, "a message with a zero byte is not taken");
    rewind(out);
    memset(text, 0, sizeof(text));
    assert_true(fread(text, 1, sizeof(text) - 1, out) > 0);
    assert_ptr_equal(strchr(text, '\n'), text + strlen(text) - 1); /* one answer */
    fclose(in);
    fclose(out);
    fclose(log);
}

/* The talk before it stays, and goes on. */
TEST(a_talk_that_cannot_go_on_is_not_loaded)
{
    static const struct {
        const char *text, *why;
    } cases[] = {
        {"[{\"role\": \"robot\", \"content\": \"Hi\"}]", "role: \"robot\" is none of"},
        {"[{\"role\": \"user\", \"content\": \"Hi\"}]", "roles must alternate"},
    };
    char path[128], jinja[128], kept[128], input[512];
    write_file(in_folder("strict.jinja", jinja),
               "{% for m in messages %}{% if loop.index0 > 0 and m.role == messages[loop.index0 - "
               "1].role %}{{ raise_exception('roles must alternate') }}{% endif %}{{ m.role }}: "
               "{{ m.content }}\n{% endfor %}");
    in_folder("talk.json", path);
    in_folder("kept.json", kept);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        write_file(path, cases[i].text);
        snprintf(input, sizeof(input), "Hello\n/load %s\nAnd you?\n/save %s\n", path, kept);
        struct said s = command(input, "chat", "-m", MODEL, "-t", "1", "--chat-template-file",
                                jinja, "--temp", "0", "-n", "4", NULL);
        expect_status(&s, 0);
        expect_word(s.err, "cannot load");
        expect_word(s.err, cases[i].why);
        json_t *list = saved_messages(kept);
        assert_int_equal(json_array_size(list), 4);
        assert_string_equal(content_of(list, 0), "Hello");
        json_decref(list);
    }
}

TEST(a_full_memory_ends_the_answer)
{
    struct said s = command("Hello\n", "chat", ON_MODEL, "-c", "16", "--page", "16", NULL);
    assert_int_equal(s.status, 0);
    expect_word(s.err, "/reset starts over");
}

/* ---- on a terminal ---- */

struct terminal {
    int fd;
    pid_t pid;
    char text[1 << 16]; /* its output since the last wait */
    size_t len;
    bool at_prompt; /* the last wait ended at the editor's prompt */
};

static void terminal_open(struct terminal *t, const char *const *words)
{
    t->fd = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
    assert_true(t->fd >= 0);
    assert_int_equal(grantpt(t->fd), 0);
    assert_int_equal(unlockpt(t->fd), 0);
    t->len = 0;
    t->pid = fork();
    assert_true(t->pid >= 0);
    if (t->pid == 0) {
        char *argv[32] = {"pith"};
        int n = 0;
        while (words[n] != NULL && n < 30) {
            argv[n + 1] = (char *)words[n];
            n++;
        }
        argv[n + 1] = NULL;
        setsid();
        int slave = open(ptsname(t->fd), O_RDWR); /* becomes the session's terminal */
        for (int i = 0; i < 3; i++)
            dup2(slave, i);
        setenv("TERM", "vt100", 1);
        /* libedit never frees the name and help of an added function (wcsdup). The conversations
           through pipes look for our own leaks. */
        setenv("ASAN_OPTIONS", "detect_leaks=0", 1);
        execv(PITH_COMMAND, argv);
        _exit(127);
    }
}

/* Reads until the terminal shows word; forgets what came until then. */
static void terminal_wait(struct terminal *t, const char *word)
{
    time_t end = time(NULL) + PATIENCE_S;
    for (;;) {
        t->text[t->len] = '\0';
        char *at = strstr(t->text, word);
        if (at != NULL) {
            size_t gone = (size_t)(at - t->text) + strlen(word);
            memmove(t->text, t->text + gone, t->len - gone + 1);
            t->len -= gone;
            t->at_prompt = strcmp(word, "> ") == 0;
            return;
        }
        struct pollfd p = {.fd = t->fd, .events = POLLIN};
        if (time(NULL) > end || t->len + 1 >= sizeof(t->text))
            fail_msg("waiting for \"%s\", the terminal shows \"%s\"", word, t->text);
        if (poll(&p, 1, 1000) <= 0)
            continue;
        ssize_t n = read(t->fd, t->text + t->len, sizeof(t->text) - 1 - t->len);
        if (n <= 0)
            fail_msg("waiting for \"%s\", the program ended with \"%s\"", word, t->text);
        t->len += (size_t)n;
    }
}

/* Types once the line editor reads single keys: before, the terminal would make a signal of ^C. */
static void terminal_type(struct terminal *t, const char *text)
{
    time_t end = time(NULL) + PATIENCE_S;
    struct termios mode;
    while (t->at_prompt && time(NULL) <= end && tcgetattr(t->fd, &mode) == 0 &&
           (mode.c_lflag & ICANON) != 0)
        poll(NULL, 0, 5);
    assert_int_equal(write(t->fd, text, strlen(text)), strlen(text));
}

/* Waits for the end; the status as in struct said. */
static int terminal_close(struct terminal *t)
{
    char rest[4096];
    while (read(t->fd, rest, sizeof(rest)) > 0)
        continue;
    int status = command_wait(t->pid);
    close(t->fd);
    return status;
}

TEST(interrupt_stops_the_answer)
{
    static struct terminal t;
    char history[128];
    in_folder("history", history);
    const char *const words[] = {"chat", ON_MODEL, "-l", END_TOKEN, "--history", history, NULL};
    terminal_open(&t, words);
    terminal_wait(&t, "/help lists the commands");
    terminal_wait(&t, "> ");
    terminal_type(&t, "Hello\r");
    terminal_wait(&t, "Hello");
    terminal_wait(&t, "\n");
    terminal_wait(&t, " "); /* a first word of the answer, which has no end */
    terminal_type(&t, "\003");
    terminal_wait(&t, "> ");
    terminal_type(&t, "/kv\r");
    terminal_wait(&t, "layer 2 head 0");
    terminal_wait(&t, "> ");

    /* At the prompt Ctrl-C gives the line up, and only that. */
    terminal_type(&t, "half a line\003");
    terminal_wait(&t, "Ctrl-C again or /quit leaves");
    terminal_wait(&t, "> ");
    terminal_type(&t, "/help\r");
    terminal_wait(&t, "Ctrl-C stops an answer");
    terminal_wait(&t, "> ");
    terminal_type(&t, "/quit\r");
    assert_int_equal(terminal_close(&t), 0);

    FILE *file = fopen(history, "r");
    assert_non_null(file);
    size_t n = fread(t.text, 1, sizeof(t.text) - 1, file);
    fclose(file);
    t.text[n] = '\0';
    expect_word(t.text, "Hello");
    expect_word(t.text, "/kv");
}

TEST(interrupt_twice_or_end_leaves)
{
    static struct terminal t;
    const char *const words[] = {"chat", ON_MODEL, "--history", "", NULL};
    terminal_open(&t, words);
    terminal_wait(&t, "> ");
    terminal_type(&t, "\003");
    terminal_wait(&t, "> ");
    terminal_type(&t, "\003");
    assert_int_equal(terminal_close(&t), 0);
    terminal_open(&t, words);
    terminal_wait(&t, "> ");
    terminal_type(&t, "\004");
    assert_int_equal(terminal_close(&t), 0);
}
