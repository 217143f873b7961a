//! Second failures: the program is killed, replaced and reloaded while its replicas
//! hang, are dead or are gone.
//!
//! Here the daemon is a process of its own with a keeper, and each replica is a mount with
//! its own server. So failures and restarts hit real processes. The readers and the judge
//! are those of the first nemesis.

#[path = "second/load.rs"]
mod load;
#[path = "second/plan.rs"]
mod plan;
#[path = "second/site.rs"]
pub(crate) mod site;

use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::judge::{Judge, Report};
use crate::needs;
use crate::readers::{Manner, Reader};
use crate::schedule::Random;
use crate::watch::{SetOnDrop, watch_calls};
use crate::world::{ATTEMPT, DEADLINE};
use load::{Load, RESTART, Written};
use plan::{Deed, Plan, REPLICAS};
use site::Site;

const CREW: [Manner; 5] =
    [Manner::Sequential, Manner::Random, Manner::Direct, Manner::Small, Manner::Looking];

/// The plan of `seed`, as text.
pub(crate) fn describe(seed: u64, length: Duration) -> String {
    Plan::of(seed, length).to_string()
}

/// Whether this machine can run it. Under CI it has to.
pub(crate) fn is_possible() -> bool {
    needs::root() && needs::program("bindfs")
}

/// Runs one seed and returns the judge's report.
pub(crate) fn play(seed: u64, length: Duration) -> Report {
    let plan = Plan::of(seed, length);
    let site = Site::new(seed).expect("a volume over three bindfs");
    let bound = ATTEMPT * REPLICAS as u32 + RESTART;
    let judge = Judge::new(seed, plan.schedule.clone(), bound).with_grace(RESTART);
    let load = Load { judge: &judge, plan: &plan, site: &site };
    let written = Mutex::new(Written::default());
    let mut random = Random::new(seed);
    let give_up = || {
        println!("{:?}", site.command("status mnt"));
        site.abort();
    };
    let work = || {
        std::thread::scope(|scope| {
            let (judge, load, written) = (&judge, &load, &written);
            let _over = SetOnDrop(&judge.over);
            scope.spawn(|| judge.machine.watch(|| judge.is_over()));
            for manner in CREW {
                let (root, random, seat) = (site.path("mnt"), random.fork(), judge.seat());
                scope.spawn(move || {
                    Reader { judge, root, random, seat, mapper: None }.go_on(manner)
                });
            }
            let mut next = || (judge.seat(), random.fork());
            let (seat, chance) = next();
            scope.spawn(move || load.write(seat, chance, written));
            let (seat, chance) = next();
            scope.spawn(move || load.touch_nested(seat, chance));
            for _ in 0..2 {
                let (seat, chance) = next();
                scope.spawn(move || load.be_ordinary(seat, chance));
            }
            conduct(load, written, length);
        })
    };
    watch_calls(&judge, give_up, work);
    load.check(&written);
    if let Err(text) = quiet(&site) {
        judge.note(text, judge.now());
    }
    if let Err(text) = site.end() {
        judge.note(format!("the end: {text}"), judge.now());
    }
    judge.report()
}

/// Carries the plan out, and waits until all replicas are in service again.
fn conduct(load: &Load, written: &Mutex<Written>, length: Duration) {
    let Load { judge, plan, site } = load;
    std::thread::scope(|scope| {
        // In a thread of its own: a command may have to wait for a later heal.
        let (orders, carried_out) = std::sync::mpsc::channel::<Deed>();
        scope.spawn(move || carried_out.into_iter().for_each(|deed| order(load, deed)));
        let mut steps = plan.steps.iter().peekable();
        while judge.now() < length {
            std::thread::sleep(Duration::from_millis(50));
            while let Some(step) = steps.next_if(|step| step.at <= judge.now()) {
                match step.deed {
                    Deed::Replica(replica, failure) => site.fail(replica, failure),
                    Deed::Nested(failure) => site.fail_nested(failure),
                    Deed::Heal => {
                        if let Err(error) = site.heal() {
                            judge.note(format!("healing: {error}"), judge.now());
                        }
                        load.check(written);
                    }
                    deed => orders.send(deed).expect("it is carried out below"),
                }
            }
        }
        if let Err(error) = site.heal() {
            judge.note(format!("healing: {error}"), judge.now());
        }
    });
    let healed = judge.now();
    loop {
        if site.status().is_some_and(|status| is_all_well(&status)) {
            return;
        }
        if judge.now() > healed + crate::RECOVERY + RESTART {
            let status = site.command("status mnt");
            judge.note(format!("not all replicas are in service again: {status:?}"), healed);
            return;
        }
        std::thread::sleep(Duration::from_millis(300));
    }
}

/// Runs a command of the program. It must end, and succeed unless the daemon was just
/// killed or the command is a reload while the write replica fails.
fn order(load: &Load, deed: Deed) {
    let Load { judge, site, .. } = load;
    let from = judge.now();
    let said = match deed {
        Deed::KillDaemon => {
            if let Err(error) = site.kill_daemon() {
                judge.note(format!("killing the daemon: {error}"), from);
            }
            return;
        }
        Deed::Upgrade => site.command("upgrade mnt"),
        Deed::Reload => site.command("reload mnt"),
        Deed::Replica(..) | Deed::Nested(_) | Deed::Heal => unreachable!("no order"),
    };
    let took = judge.now() - from;
    match said {
        Ok((0, said)) => println!("  {deed:?} at {from:.1?} took {took:.1?}: {said}"),
        Ok((124 | 137, said)) => judge.note(format!("{deed:?} does not end: {said}"), from),
        // The keeper may still be starting another daemon.
        Ok(_) if load.plan.kills(from.saturating_sub(RESTART), judge.now()) => {}
        // A reload needs the write replica, as a mount does.
        Ok(_) if deed == Deed::Reload && !judge.schedule.is_well(0, from, judge.now()) => {}
        Ok((status, said)) => judge.note(format!("{deed:?}: {status}: {said}"), from),
        Err(error) => judge.note(format!("{deed:?}: {error}"), from),
    }
}

/// `probing` counts as well: a replica stays so while the others leave it no large read.
fn is_all_well(status: &serde_json::Value) -> bool {
    let is_back = |r: &serde_json::Value| r["health"] == "healthy" || r["health"] == "probing";
    status["replicas"].as_array().is_some_and(|replicas| replicas.iter().all(is_back))
}

/// Waits until nothing is in flight; the error names the gauges that are not zero.
fn quiet(site: &Site) -> Result<(), String> {
    let until = Instant::now() + 2 * DEADLINE + RESTART;
    loop {
        let status = site.status().ok_or("there is no status at the end")?;
        let gauges = &status["gauges"];
        let names = ["buffer_used", "segments_waiting", "segments_in_flight", "requests"];
        let names = names.iter().chain(&["calls", "handles"]);
        let busy: u64 = names.filter_map(|name| gauges[*name].as_u64()).sum();
        let replicas = status["replicas"].as_array().into_iter().flatten();
        let inside: u64 = replicas.filter_map(|replica| replica["active_threads"].as_u64()).sum();
        if busy + inside == 0 {
            return Ok(());
        }
        if Instant::now() > until {
            return Err(format!("gauges are not zero, {inside} threads inside: {gauges}"));
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}
