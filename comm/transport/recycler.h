// Recycler: objects that are reused instead of allocated again. They hold what a message needs while it
// travels (Message in comm/transport/transport.h, received parts in comm/transport/zmq.cc). A RecycledPtr
// holds an object. When the last RecycledPtr lets go, on whichever thread, the object returns to its recycler.
// So a recycler has as many objects as were ever in use at once, and allocates nothing after warm-up.
//
// A recycler may be destroyed before its objects. Recycler, retain() and release() are thread-safe. Each class
// of objects says which threads may use them.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <utility>

namespace modelet::comm {

// Base class of the objects. An object that no recycler made (std::make_unique, RecycledPtr) is deleted by its
// last user.
class Recyclable {
 public:
  Recyclable(const Recyclable&) = delete;
  Recyclable& operator=(const Recyclable&) = delete;
  virtual ~Recyclable() = default;

  void retain() noexcept { users_.fetch_add(1, std::memory_order_relaxed); }
  void release() noexcept {
    if (users_.fetch_sub(1, std::memory_order_acq_rel) > 1) return;
    clear();
    if (const std::shared_ptr<Shelf> shelf = std::move(shelf_))
      shelf->put(std::unique_ptr<Recyclable>(this));
    else
      delete this;
  }

 protected:
  Recyclable() = default;
  // Called when nobody uses the object any more. Must give back what belongs to others, but keep the
  // object's own memory.
  virtual void clear() noexcept {}

 private:
  template <class T>
  friend class Recycler;

  // The free objects of a recycler.
  class Shelf {
   public:
    Shelf() = default;
    Shelf(const Shelf&) = delete;
    Shelf& operator=(const Shelf&) = delete;
    ~Shelf() {
      while (take()) {  // one by one: destroying the whole chain would recurse
      }
    }
    void put(std::unique_ptr<Recyclable> object) noexcept {
      const std::lock_guard lock(mutex_);
      object->next_ = std::move(first_);
      first_ = std::move(object);
    }
    std::unique_ptr<Recyclable> take() noexcept {
      const std::lock_guard lock(mutex_);
      if (!first_) return nullptr;
      std::unique_ptr<Recyclable> object = std::move(first_);
      first_ = std::move(object->next_);
      return object;
    }

   private:
    std::mutex mutex_;
    std::unique_ptr<Recyclable> first_;  // the one used last: its memory is most likely to be in a cache
  };

  std::atomic<int> users_{0};
  std::shared_ptr<Shelf> shelf_;      // set while the object is in use
  std::unique_ptr<Recyclable> next_;  // set while the object is free
};

// Holds an object of a recycler. Empty after being moved from.
template <class T>
class RecycledPtr {
 public:
  RecycledPtr() = default;
  explicit RecycledPtr(std::unique_ptr<T> object) noexcept : object_(object.release()) {
    if (object_ != nullptr) object_->retain();
  }
  RecycledPtr(const RecycledPtr& other) noexcept : object_(other.object_) {
    if (object_ != nullptr) object_->retain();
  }
  RecycledPtr(RecycledPtr&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  template <class Derived>
  RecycledPtr(RecycledPtr<Derived> other) noexcept  // NOLINT: implicit, as for std::shared_ptr
      : object_(std::exchange(other.object_, nullptr)) {}
  RecycledPtr& operator=(RecycledPtr other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  ~RecycledPtr() {
    if (object_ != nullptr) object_->release();
  }

  T* get() const { return object_; }
  T* operator->() const { return object_; }
  T& operator*() const { return *object_; }

 private:
  template <class U>
  friend class RecycledPtr;

  T* object_ = nullptr;
};

template <class T>
class Recycler {
 public:
  // A free object, as its last user left it, or a new one.
  RecycledPtr<T> take() {
    std::unique_ptr<Recyclable> object = shelf_->take();
    if (!object) object = std::make_unique<T>();
    object->shelf_ = shelf_;
    return RecycledPtr<T>(std::unique_ptr<T>(static_cast<T*>(object.release())));
  }

 private:
  std::shared_ptr<Recyclable::Shelf> shelf_ = std::make_shared<Recyclable::Shelf>();
};

}  // namespace modelet::comm
