#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent.h"

#define DEFAULT_PATH "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
#define NOT_EXECUTABLE 126

/* One of the messages of this file, as its only line. */
static void say(const char *name, const char *what, const char *which, const char *end) {
    char line[1024];
    struct text text = text_over(line, sizeof line - 1);
    text_add(&text, LAUNCH_PREFIX);
    text_add_name(&text, name);
    text_add(&text, ": ");
    text_add(&text, what);
    if (which != NULL)
        text_add_name(&text, which);
    text_add(&text, end);
    line[text.length] = '\n';
    ssize_t ignored = write(STDERR_FILENO, line, text.length + 1);
    (void)ignored; /* nobody reads: the exit code says it too */
}

/* The loader that a program for this word size asks for, or false. */
static bool elf_loader(int fd, const char *head, ssize_t size, char *out, size_t room) {
    Elf64_Ehdr header;
    if (size < (ssize_t)sizeof header || memcmp(head, ELFMAG, SELFMAG) != 0 || head[EI_CLASS] != ELFCLASS64)
        return false;
    memcpy(&header, head, sizeof header);
    for (unsigned i = 0; i < header.e_phnum && i < 64; i++) {
        Elf64_Phdr part;
        off_t at = (off_t)(header.e_phoff + (uint64_t)i * sizeof part);
        if (pread(fd, &part, sizeof part, at) != (ssize_t)sizeof part)
            return false;
        if (part.p_type != PT_INTERP)
            continue;
        size_t length = part.p_filesz < room - 1 ? (size_t)part.p_filesz : room - 1;
        ssize_t got = pread(fd, out, length, (off_t)part.p_offset);
        out[got > 0 ? got : 0] = '\0';
        return got > 0;
    }
    return false;
}

/* The file is there, and execve said it is not: what it needs to run is missing. */
static void say_missing_helper(const char *name, const char *path) {
    char head[256];
    char helper[256];
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    ssize_t size = fd < 0 ? -1 : read(fd, head, sizeof head - 1);
    if (size > 2 && head[0] == '#' && head[1] == '!') {
        head[size] = '\0';
        char *at = head + 2 + strspn(head + 2, " \t");
        at[strcspn(at, " \t\r\n")] = '\0';
        say(name, "it was found, but the interpreter of its #! line is missing: ", at, "");
    } else if (elf_loader(fd, head, size, helper, sizeof helper)) {
        say(name, "it was found, but the loader it needs is missing: ", helper, "");
    } else {
        say(name, "it was found, but its interpreter or loader is missing", NULL, "");
    }
    if (fd >= 0)
        close(fd);
}

static void say_not_executable(const char *name, const char *path, int error) {
    struct stat status;
    bool there = stat(path, &status) == 0;
    if (there && S_ISDIR(status.st_mode))
        say(name, "it is a directory", NULL, "");
    else if (error == ENOENT)
        say_missing_helper(name, path);
    else if (error == EACCES && there && S_ISREG(status.st_mode) && access(path, X_OK) == 0)
        say(name, "permission denied by its file system (noexec) or on its interpreter", NULL, "");
    else if (error == EACCES)
        say(name, "permission denied: it is not executable for this user", NULL, "");
    else if (error == ENOEXEC)
        say(name, "it is neither a program for this machine nor a script with a #! line", NULL, "");
    else if (error == E2BIG)
        say(name, "the arguments and the environment are too long", NULL, "");
    else
        say(name, "it cannot be executed: ", strerror(error), "");
}

/* The error says only that nothing of that name is there. */
static bool is_absence(int error) {
    return error == ENOENT || error == ENOTDIR || error == ENAMETOOLONG || error == ENODEV || error == ESTALE;
}

static int launch_path(char **argv, char **envp) {
    const char *name = argv[0];
    struct stat status;
    execve(name, argv, envp);
    int error = errno;
    if (is_absence(error) && stat(name, &status) != 0) {
        say(name, "no such file", NULL, "");
        return LAUNCH_NOT_FOUND;
    }
    say_not_executable(name, name, error);
    return NOT_EXECUTABLE;
}

/* `folder`/`name`; an empty folder is the working folder, as POSIX has it. False when it is too long to exist. */
static bool join(char out[PATH_MAX], const char *folder, size_t length, const char *name) {
    size_t name_length = strlen(name);
    if (length + 1 + name_length >= PATH_MAX)
        return false;
    memcpy(out, folder, length);
    if (length > 0)
        out[length++] = '/';
    memcpy(out + length, name, name_length + 1);
    return true;
}

static const char *path_of(char *const *envp) {
    const char *path = environment_get(envp, "PATH");
    return path == NULL ? DEFAULT_PATH : path;
}

struct path_search path_search(const char *name, char *const *envp) {
    bool direct = strchr(name, '/') != NULL;
    return (struct path_search){
        .name = name, .direct = direct, .folders = *name == '\0' ? NULL : direct ? "" : path_of(envp)};
}

bool path_search_next(struct path_search *search, char out[PATH_MAX]) {
    bool fits = false;
    while (search->folders != NULL && !fits) {
        const char *folder = search->folders;
        size_t length = strcspn(folder, ":");
        search->folders = folder[length] == ':' ? folder + length + 1 : NULL;
        fits = join(out, folder, length, search->name);
    }
    return fits;
}

int launch(char **argv, char **envp) {
    const char *name = argv[0];
    char candidate[PATH_MAX];
    char found[PATH_MAX] = "";
    int found_error = 0;
    struct stat status;
    struct path_search search = path_search(name, envp);
    if (search.direct)
        return launch_path(argv, envp); /* also one that is too long to exist */
    while (path_search_next(&search, candidate)) {
        execve(candidate, argv, envp);
        int error = errno;
        if (found_error == 0 && stat(candidate, &status) == 0) {
            found_error = error;
            memcpy(found, candidate, strlen(candidate) + 1);
        }
    }
    if (found_error == 0) {
        say(name, "command not found in PATH ", path_of(envp), "");
        return LAUNCH_NOT_FOUND;
    }
    say_not_executable(name, found, found_error);
    return NOT_EXECUTABLE;
}
