//! Runs a request as a future, without a thread of its own.
//!
//! [`run`] polls the request on the thread that starts it, until the request first waits. The
//! thread that completes the awaited call polls it next, and so on. The thread that completes the
//! last call sends the reply. A runtime that queued requests for its own threads would add a thread
//! switch to each metadata call.
//!
//! A session thread may make a call itself ([`run_on_session_thread`]): handing a call to a
//! replica's thread and waking the caller costs more than most calls. It makes the call only when
//! the request already waits for it. So if the call hangs, and another replica or the ticker
//! completes it, that thread continues the request.
//!
//! Some values must outlast the reply, such as the count of changes in progress.
//! [`hold_until_reply`] keeps them, and they are dropped when the request has ended.
//!
//! *Invariant:* a request never blocks the thread that polls it, which may be a FUSE session
//! thread, a replica's thread or the runtime's.

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll};

use async_task::Runnable;
use smallvec::SmallVec;

use crate::backend::RequestingThread;

type Guards = SmallVec<[Box<dyn Send>; 2]>;

type BoxedRequest = Pin<Box<dyn Future<Output = ()> + Send>>;

type DeferredCall = Box<dyn FnOnce() + Send>;

thread_local! {
    /// The guards of the request that this thread polls.
    static HELD: Cell<Option<Guards>> = const { Cell::new(None) };
    /// Whether this thread may make a call itself, and which call is next.
    static DEFERRED: RefCell<Deferral> = const { RefCell::new(Deferral::Refused) };
}

/// How a thread treats a call that it could make itself.
enum Deferral {
    /// It refuses the call.
    Refused,
    /// It takes the next call.
    Accepted,
    /// It will make this call.
    Call(DeferredCall),
}

/// Starts a request. The calling thread polls it at once, and the threads that complete its calls
/// poll it later. Each poll is on behalf of the thread for which the caller works now.
#[inline]
pub fn run(request: impl Future<Output = ()> + Send + 'static) {
    run_boxed(Box::pin(request));
}

/// A request has up to 3 KiB. It is boxed once where it starts, and the code behind this is
/// compiled only once.
fn run_boxed(request: BoxedRequest) {
    let requesting_thread = RequestingThread::current();
    let poll_here = move |request: Runnable| {
        requesting_thread.scope(|| request.run());
    };
    let (first_poll, task) =
        async_task::spawn(WithGuards { request, held: Guards::new() }, poll_here);
    task.detach();
    // Kept during the poll. A call that is dropped in the poll drops its waker. If that were the
    // last reference, the request would be dropped while it is being polled.
    let waker = first_poll.waker();
    first_poll.run();
    drop(waker);
}

/// Starts a request like [`run`], on a thread that may make calls itself, one at a time. Then makes
/// the calls that were left to it.
#[inline]
pub fn run_on_session_thread(request: impl Future<Output = ()> + Send + 'static) {
    run_boxed_on_session_thread(Box::pin(request));
}

fn run_boxed_on_session_thread(request: BoxedRequest) {
    /// Makes the thread refuse calls from now on.
    struct Refuse;
    impl Drop for Refuse {
        fn drop(&mut self) {
            DEFERRED.set(Deferral::Refused);
        }
    }
    let _refuse = Refuse;
    DEFERRED.set(Deferral::Accepted);
    run_boxed(request);
    while let Deferral::Call(call) = DEFERRED.replace(Deferral::Accepted) {
        // The call polls the rest of the request. A panic must not end the thread, which serves
        // other requests.
        if catch_unwind(AssertUnwindSafe(call)).is_err() {
            tracing::error!("a request panicked; this is a bug in fanfs");
        }
    }
}

/// Whether the calling thread is a session thread that has begun a request.
pub fn is_on_session_thread() -> bool {
    DEFERRED.with_borrow(|deferral| !matches!(deferral, Deferral::Refused))
}

/// Leaves `call` to the calling thread, which makes it once the request waits. Returns the call if
/// that thread makes none, or already has one.
pub(super) fn defer<C: FnOnce() + Send + 'static>(call: C) -> Result<(), C> {
    DEFERRED.with_borrow_mut(|deferral| match deferral {
        Deferral::Accepted => {
            *deferral = Deferral::Call(Box::new(call));
            Ok(())
        }
        Deferral::Refused | Deferral::Call(_) => Err(call),
    })
}

/// Keeps the outer request's guards while an inner request is polled. After a panic it also
/// restores them, and drops the inner ones.
struct HeldScope {
    outer: Option<Guards>,
    is_left: bool,
}

impl HeldScope {
    fn enter(held: Guards) -> Self {
        Self { outer: HELD.replace(Some(held)), is_left: false }
    }

    /// Restores the outer guards and returns those of the polled request.
    fn leave(&mut self) -> Guards {
        self.is_left = true;
        HELD.replace(self.outer.take()).unwrap_or_default()
    }
}

impl Drop for HeldScope {
    fn drop(&mut self) {
        if !self.is_left {
            drop(self.leave());
        }
    }
}

/// A request with its guards.
struct WithGuards {
    request: BoxedRequest,
    held: Guards,
}

impl Future for WithGuards {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        // Requests nest: ending a call polls the request that waits for it.
        let mut scope = HeldScope::enter(std::mem::take(&mut self.held));
        let polled = self.request.as_mut().poll(context);
        self.held = scope.leave();
        polled
    }
}

/// Keeps `guard` until the request that this thread polls has ended, which is after its reply, or
/// until its next call has started. Outside a request `guard` is dropped at once.
pub fn hold_until_reply(guard: impl Send + 'static) {
    if let Some(mut held) = HELD.take() {
        held.push(Box::new(guard));
        HELD.set(Some(held));
    }
}

/// Drops the guards of the current request: its next call has started, or it is about to wait for
/// another request.
pub fn release_held() {
    let held = HELD.take();
    if held.is_some() {
        HELD.set(Some(Guards::new()));
    }
    drop(held);
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::mpsc::channel;
    use std::thread;

    use tokio::sync::oneshot;

    use super::*;

    #[test]
    fn a_request_resumes_on_the_completing_thread() {
        let (complete, completed) = oneshot::channel();
        let (send, receive) = channel();
        RequestingThread::from_tid(7).set_current();
        run(async move {
            let first = thread::current().id();
            completed.await.unwrap();
            send.send((first, thread::current().id(), RequestingThread::current())).unwrap();
        });
        RequestingThread::NONE.set_current();
        assert!(receive.try_recv().is_err(), "it waits");
        let other = thread::spawn(move || complete.send(()).unwrap());
        let other_id = other.thread().id();
        other.join().unwrap();
        let seen = receive.try_recv().unwrap();
        assert_eq!(seen, (thread::current().id(), other_id, RequestingThread::from_tid(7)));
    }

    #[test]
    fn a_session_thread_makes_the_call_it_waits_for() {
        let (complete, completed) = oneshot::channel();
        let (send, receive) = channel();
        let request = async move {
            let sent = send.clone();
            let call = move || {
                sent.send("called").unwrap();
                complete.send(()).unwrap();
            };
            assert!(defer(call).is_ok());
            assert!(defer(|| ()).is_err(), "one at a time");
            send.send("waits").unwrap();
            completed.await.unwrap();
            let sent = send.clone();
            assert!(defer(move || sent.send("called again").unwrap()).is_ok());
            send.send("ends").unwrap();
        };
        run_on_session_thread(request);
        let order: Vec<_> = receive.try_iter().collect();
        assert_eq!(order, ["waits", "called", "ends", "called again"]);
        assert!(defer(|| ()).is_err(), "outside a request");
        run(async { assert!(defer(|| ()).is_err(), "on another thread") });
    }

    #[test]
    fn a_session_thread_survives_a_panicking_request() {
        run_on_session_thread(async { assert!(defer(|| panic!("on purpose")).is_ok()) });
        let (send, receive) = channel();
        run_on_session_thread(async move {
            assert!(defer(move || send.send(()).unwrap()).is_ok());
        });
        assert!(receive.try_recv().is_ok());
    }

    #[test]
    fn a_panicking_request_keeps_the_outer_guards() {
        let (outer, inner) = (Arc::new(()), Arc::new(()));
        let (of_outer, of_inner) = (Arc::clone(&outer), Arc::clone(&inner));
        let (end, ended) = oneshot::channel::<()>();
        run(async move {
            hold_until_reply(of_outer);
            let panicking = || {
                run(async move {
                    hold_until_reply(of_inner);
                    panic!("on purpose");
                })
            };
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(panicking)).unwrap_err();
            let _ = ended.await;
        });
        assert_eq!(Arc::strong_count(&outer), 2, "its request waits");
        assert_eq!(Arc::strong_count(&inner), 1);
        end.send(()).unwrap();
        assert_eq!(Arc::strong_count(&outer), 1);
    }

    /// Its waker is dropped before the poll that stored it has ended.
    #[test]
    fn a_request_is_dropped_with_its_call_in_the_first_poll() {
        let kept = Arc::new(());
        let own = Arc::clone(&kept);
        run(async move {
            std::future::poll_fn(|context| {
                drop(context.waker().clone());
                Poll::<()>::Pending
            })
            .await;
            drop(own);
        });
        assert_eq!(Arc::strong_count(&kept), 1);
    }

    #[test]
    fn a_guard_lasts_until_the_request_ends_or_waits() {
        let guards = [(); 3].map(|()| Arc::new(()));
        let held = || [0, 1, 2].map(|i| Arc::strong_count(&guards[i]) > 1);
        let clones = guards.clone();
        let (end, ended) = oneshot::channel();
        run(async move {
            let [released, kept, inner] = clones;
            hold_until_reply(released);
            run(async move { hold_until_reply(inner) });
            release_held();
            hold_until_reply(kept);
            ended.await.unwrap();
        });
        assert_eq!(held(), [false, true, false]);
        end.send(()).unwrap();
        assert_eq!(held(), [false; 3]);
        hold_until_reply(Arc::clone(&guards[0]));
        assert_eq!(held(), [false; 3], "outside a request");
    }
}
