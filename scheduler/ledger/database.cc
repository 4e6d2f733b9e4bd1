#include "scheduler/ledger/database.h"

#include <spdlog/fmt/fmt.h>

#include <cstring>

#include "base/error.h"
#include "scheduler/ledger/ledger.h"

namespace modelet::scheduler {

Database::Database(const std::filesystem::path& file) : file_(file.string()) {
  sqlite3* handle = nullptr;
  const int result = sqlite3_open_v2(
      file_.c_str(), &handle,
      SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_EXRESCODE, nullptr);
  handle_.reset(handle);
  require(result);
  if (sqlite3_db_readonly(this->handle(), "main") == 1) require(SQLITE_READONLY);
}

void Database::run(const std::string& sql) {
  require(sqlite3_exec(handle(), sql.c_str(), nullptr, nullptr, nullptr));
}

uint64_t Database::number_of(const char* sql) {
  Statement statement(*this, sql);
  return statement.next() ? statement.number(0) : 0;
}

std::string Database::text_of(const char* sql) {
  Statement statement(*this, sql);
  return statement.next() ? statement.text(0) : std::string();
}

void Database::copy_to(const std::filesystem::path& file) {
  Database copy(file);
  sqlite3_backup* const backup = sqlite3_backup_init(copy.handle(), "main", handle(), "main");
  if (backup == nullptr) copy.require(sqlite3_errcode(copy.handle()));
  constexpr int kAllPages = -1;
  sqlite3_backup_step(backup, kAllPages);
  copy.require(sqlite3_backup_finish(backup));
}

// SQLite may have rolled back already; the statement then fails, which does no harm.
void Database::roll_back() noexcept { sqlite3_exec(handle(), "ROLLBACK", nullptr, nullptr, nullptr); }

void Database::require(int result) const {
  switch (result & 0xff) {  // the other bits only add detail
    case SQLITE_OK:
    case SQLITE_DONE:
    case SQLITE_ROW:
      return;
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
      damaged(sqlite3_errmsg(handle_.get()));
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
      throw InUse(explain(result));
    default:
      throw Error(explain(result));
  }
}

void Database::damaged(const std::string& what) const {
  throw FormatError(fmt::format(
      "{}: is damaged ({}): put back a copy of it, or move it away, and with it all that it knows of runs",
      file_, what));
}

std::string Database::explain(int result) const {
  // The connection describes its last call, which need not be the one that failed.
  const bool known = handle_ && sqlite3_extended_errcode(handle_.get()) == result;
  std::string cause = known ? sqlite3_errmsg(handle_.get()) : sqlite3_errstr(result);
  if (const int number = known ? sqlite3_system_errno(handle_.get()) : 0; number != 0)
    cause += std::string(": ") + std::strerror(number);
  switch (result & 0xff) {
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
      return file_ + ": another process uses it: end that one, or give this one a folder of its own";
    case SQLITE_FULL:
      return fmt::format("{}: its disk is full ({}): make room there, then start again", file_, cause);
    case SQLITE_READONLY:
    case SQLITE_CANTOPEN:
    case SQLITE_PERM:
      return fmt::format(
          "{}: cannot be written ({}): it and its folder must belong to who starts this program", file_,
          cause);
    default:
      return fmt::format("{}: {}: is its disk well?", file_, cause);
  }
}

Statement::Statement(Database& database, const char* sql) : database_(database) {
  sqlite3_stmt* statement = nullptr;
  const int result = sqlite3_prepare_v2(database.handle(), sql, -1, &statement, nullptr);
  statement_.reset(statement);
  database.require(result);
}

bool Statement::next() {
  const int result = sqlite3_step(statement_.get());
  database_.require(result);
  return result == SQLITE_ROW;
}

// SQLite's integers are signed; converting them keeps all 64 bits.
uint64_t Statement::number(int column) {
  return static_cast<uint64_t>(sqlite3_column_int64(statement_.get(), column));
}

std::string Statement::text(int column) {
  const void* bytes =
      sqlite3_column_blob(statement_.get(), column);  // must come before sqlite3_column_bytes()
  const auto size = static_cast<size_t>(sqlite3_column_bytes(statement_.get(), column));
  return bytes == nullptr ? std::string() : std::string(static_cast<const char*>(bytes), size);
}

void Statement::bind(int place, uint64_t number) {
  database_.require(sqlite3_bind_int64(statement_.get(), place, static_cast<sqlite3_int64>(number)));
}

void Statement::bind(int place, const std::string& text) {
  database_.require(
      sqlite3_bind_text64(statement_.get(), place, text.data(), text.size(), SQLITE_STATIC, SQLITE_UTF8));
}

void Statement::finish() {
  database_.require(sqlite3_step(statement_.get()));
  database_.require(sqlite3_reset(statement_.get()));
}

}  // namespace modelet::scheduler
