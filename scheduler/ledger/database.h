// Database: an SQLite database and its statements. Its errors are this project's errors: they name the file
// and say what to do. For Ledger only (scheduler/ledger/ledger.h). One thread.
#pragma once

#include <sqlite3.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

namespace modelet::scheduler {

class Database {
 public:
  // Opens the file, or makes it. Nothing is read or locked yet.
  explicit Database(const std::filesystem::path& file);

  const std::string& file() const { return file_; }
  void run(const std::string& sql);  // one or more statements without results
  // The first value of the result; 0 or "" if it has no row.
  uint64_t number_of(const char* sql);
  std::string text_of(const char* sql);
  // Either everything that `work` writes is in the file afterwards, or, if `work` throws, nothing of it.
  template <class Work>
  void in_transaction(const Work& work);

  // Writes a copy, as it is now, into a file that does not exist yet.
  void copy_to(const std::filesystem::path& file);

  void require(int result) const;  // throws unless `result` means success
  [[noreturn]] void damaged(const std::string& what) const;
  sqlite3* handle() { return handle_.get(); }

 private:
  void roll_back() noexcept;
  std::string explain(int result) const;

  const std::string file_;
  std::unique_ptr<sqlite3, decltype(&sqlite3_close)> handle_{nullptr, sqlite3_close};
};

// A prepared statement, which is carried out once or several times.
class Statement {
 public:
  Statement(Database& database, const char* sql);

  // Carries out a statement without a result. The values take the places of its question marks.
  template <class... Values>
  void run(const Values&... values) {
    int place = 0;
    (bind(++place, values), ...);
    finish();
  }
  // For a statement with a result, whose rows next() then reads. The values must stay valid until the last
  // row.
  template <class... Values>
  Statement& with(const Values&... values) {
    int place = 0;
    (bind(++place, values), ...);
    return *this;
  }
  bool next();  // goes to the next row of the result; false: there is none
  uint64_t number(int column);
  std::string text(int column);

 private:
  void bind(int place, uint64_t number);
  void bind(int place, const std::string& text);  // `text` must stay valid until then
  void finish();

  Database& database_;
  std::unique_ptr<sqlite3_stmt, decltype(&sqlite3_finalize)> statement_{nullptr, sqlite3_finalize};
};

template <class Work>
void Database::in_transaction(const Work& work) {
  run("BEGIN IMMEDIATE");
  try {
    work();
    run("COMMIT");
  } catch (...) {
    roll_back();
    throw;
  }
}

}  // namespace modelet::scheduler
