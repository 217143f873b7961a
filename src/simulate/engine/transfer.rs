//! An attempt takes its segment through the servers on its route, one after another. Each server
//! carries the bytes at its own rate.

use super::{Engine, Event, InFlightAttempt};
use crate::simulate::fifo_server::SimTime;
use crate::simulate::policy::{AttemptKey, JobId};
use crate::simulate::world::Cluster;
use crate::volume::ReplicaId;

impl Engine<'_> {
    pub(super) fn on_transferred(&mut self, server: usize, version: u64) {
        let Some(ended) = self.servers[server].complete(version, self.now) else { return };
        self.schedule_completion(server, ended.next);
        self.advance_attempt(ended.job);
    }

    /// Takes an attempt to its next server; after the last server, schedules its delivery.
    fn advance_attempt(&mut self, flight: usize) {
        match self.in_flight[flight].remaining_servers.pop() {
            Some(server) => {
                let work = self.transfer_work(flight);
                let due = self.servers[server].enqueue(flight, work, self.now);
                self.schedule_completion(server, due);
            }
            None => {
                let gateway = &self.world.gateways[self.in_flight[flight].replica];
                let time = self.now + gateway.latency.as_nanos() as SimTime;
                self.schedule_event(time, Event::Delivered { flight });
            }
        }
    }

    /// The work for a server: bytes, or seconds in a measured cluster.
    fn transfer_work(&self, flight: usize) -> f64 {
        let flight = &self.in_flight[flight];
        let bytes = self.jobs[flight.job].range.len() as f64;
        match &self.world.cluster {
            Cluster::Nodes { .. } => bytes,
            Cluster::Measured { rates } => {
                let rates = rates[flight.replica];
                bytes / if flight.is_local { rates.local } else { rates.remote }
            }
        }
    }

    pub(super) fn start_attempt(
        &mut self,
        job: JobId,
        replica: usize,
        attempt: Option<AttemptKey>,
    ) {
        let segment = &self.jobs[job];
        let file = self.readers[segment.reader].spec.file;
        let offset = segment.range.start;
        let chunk = self.locality_maps[file].chunk_at(offset);
        // Where the file has no chunk, the placement is unknown and counts as local.
        let local = chunk.is_none_or(|chunk| chunk.holders.local.contains(ReplicaId::new(replica)));
        let route = self.servers_on_route(file, offset, replica, local);
        self.in_flight.push(InFlightAttempt {
            job,
            attempt,
            replica,
            is_local: local,
            remaining_servers: route,
        });
        self.advance_attempt(self.in_flight.len() - 1);
    }

    /// The servers on the route of a segment, the last one first.
    fn servers_on_route(
        &self,
        file: usize,
        offset: u64,
        replica: usize,
        local: bool,
    ) -> Vec<usize> {
        let Cluster::Nodes { always_first_node: head_first, .. } = &self.world.cluster else {
            return vec![replica];
        };
        let gateway = self.world.gateways[replica].node;
        let disk = gateway * 3;
        let inward = gateway * 3 + 1;
        let out = gateway * 3 + 2;
        if local {
            return vec![out, disk];
        }
        let holders = self.holder_nodes(file, offset);
        let holder = if *head_first {
            holders.first()
        } else {
            // Different gateways start with different holders, so they do not all use the same one.
            let turn = offset / self.workload.segment_size + replica as u64;
            holders.get((turn % holders.len().max(1) as u64) as usize)
        };
        match holder {
            Some(holder) => vec![out, inward, holder * 3 + 2, holder * 3],
            None => vec![out, disk],
        }
    }

    pub(super) fn holder_nodes(&self, file: usize, offset: u64) -> Vec<usize> {
        let chunk = self.world.files[file].chunks.chunk_at(offset);
        let nodes = chunk.map_or(&[][..], |chunk| chunk.nodes);
        nodes.iter().filter_map(|node| self.node_indices[file][usize::from(*node)]).collect()
    }
}
