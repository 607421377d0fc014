/*
 * test_page_bytes.c - the page in the binary is the page in the repository, byte for byte, and asks
 * for nothing from anywhere else.
 */
#include <stdio.h>
#include <string.h>

#include "testing.h"

#include "page.h"

TEST(the_binary_holds_the_page_byte_for_byte)
{
    static char file[1 << 20];
    assert_true(page_n_file > 3);
    for (size_t i = 0; i < page_n_file; i++) {
        char path[512];
        snprintf(path, sizeof(path), PITH_SOURCE_DIR "/page/%s", page_files[i].name);
        FILE *in = fopen(path, "rb");
        assert_non_null(in);
        size_t n = fread(file, 1, sizeof(file), in);
        fclose(in);
        assert_true(n > 500 && n < sizeof(file));
        assert_int_equal(page_files[i].size, n);
        assert_memory_equal(page_files[i].data, file, n);
        assert_int_equal(page_files[i].data[n], 0);
    }
}

/* Every file belongs to a page. The live page's policy allows files of the server alone and nothing
   inline. The policy of the sheet allows its own style and script. */
TEST(the_pages_name_files_of_their_own_alone)
{
    const char *html = page_files[0].data, *sheet = "";
    assert_string_equal(page_files[0].name, "index.html");
    for (size_t i = 1; i < page_n_file; i++)
        if (strcmp(page_files[i].name, "sheet.html") == 0)
            sheet = page_files[i].data;
    for (size_t i = 1; i < page_n_file; i++) {
        char name[64], place[64];
        snprintf(name, sizeof(name), "\"page/%s\"", page_files[i].name);
        snprintf(place, sizeof(place), "{{%s}}", page_files[i].name);
        if (page_files[i].data != sheet && !strstr(html, name) && !strstr(sheet, place))
            fail_msg("no page loads %s", page_files[i].name);
    }
    assert_non_null(strstr(sheet, "content=\"default-src 'none'; style-src 'unsafe-inline'; "
                                  "script-src 'unsafe-inline'\""));
    assert_non_null(strstr(html, "default-src 'none'; style-src 'self'; script-src 'self'"));
    assert_null(strstr(html, "unsafe-"));
    assert_null(strstr(html, "style=\""));
    assert_null(strstr(html, "<script>"));
}

TEST(the_page_names_no_other_origin)
{
    static const char *const never[] = {"http://", "https://",  "src=\"//",          "@import",
                                        "url(",    "innerHTML", "insertAdjacentHTML"};
    for (size_t f = 0; f < page_n_file; f++)
        for (size_t i = 0; i < sizeof(never) / sizeof(never[0]); i++)
            if (strstr(page_files[f].data, never[i]) != NULL)
                fail_msg("%s has \"%s\" in it", page_files[f].name, never[i]);
}
