// For tests in which several processes do the same at the same time.
#pragma once

#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <exception>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

namespace modelet::test {

// A value that child processes share with their parent.
template <class T>
class Shared {
 public:
  Shared() {
    void* memory = ::mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    value_ = new (memory) T();
  }
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;
  ~Shared() { ::munmap(value_, sizeof(T)); }

  T* operator->() const { return value_; }
  T& operator*() const { return *value_; }

 private:
  T* value_;
};

// Throws in a child process if `condition` does not hold. (The macros of GoogleTest would report it to
// nobody.)
inline void require(bool condition, const std::string& what) {
  if (!condition) throw std::runtime_error(what);
}

// Runs body(0) .. body(count - 1), each in a process of its own. All begin together. Returns their exit
// statuses as waitpid(2) gives them: 0 if the body returned.
template <class Body>
std::vector<int> run_processes(int count, const Body& body) {
  const Shared<std::atomic<int>> ready;
  std::vector<pid_t> children;
  for (int i = 0; i < count; ++i) {
    children.push_back(::fork());
    if (children.back() != 0) continue;
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // so a killed test leaves no process behind
    ++*ready;
    while (*ready < count) ::sched_yield();
    try {
      body(i);
      ::_exit(0);
    } catch (const std::exception& error) {
      std::fprintf(stderr, "process %d: %s\n", i, error.what());
      ::_exit(1);
    }
  }
  std::vector<int> ends;
  for (const pid_t child : children) {
    int status = -1;
    ::waitpid(child, &status, 0);
    ends.push_back(status);
  }
  return ends;
}

}  // namespace modelet::test
