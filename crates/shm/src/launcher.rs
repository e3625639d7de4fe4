//! What the launcher and the ranks it started tell each other, and how a launcher starts processes.
//!
//! The launcher listens on an abstract `SOCK_SEQPACKET` socket with a random name, which the ranks find in
//! [`LAUNCHER_VARIABLE`]. Whoever uses Foldcast in a rank connects when it starts, so that it does not matter how many
//! processes stand between it and the launcher (`foldcast run -n 2 -- bash -c "python x.py"`). Both sides ask the
//! kernel who the other is and refuse other users. Then:
//!
//! | who | packet | when |
//! |---|---|---|
//! | rank | `MAGIC rank:u32` | once, after it connected |
//! | launcher | `MAGIC cause:[u8; 24]` | for each rank that ended, also those that ended before the rank connected |
//! | launcher | end of file | it is gone: the rank must end too, see [`die_with_launcher`] |
//!
//! Packets of another length or content are ignored on both sides. Numbers are little-endian.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, sockopt};
use rustix::process::Pid;
use types::{Cause, Ending, Error, Rank, Result};

mod process;

pub use process::{Arrival, Signals, spawn};

/// The variable with the launcher's address: the name of its abstract socket.
pub const LAUNCHER_VARIABLE: &str = "FOLDCAST_LAUNCHER";

/// The variable with the job's random id: 32 hexadecimal digits, equal on all ranks and on no other job.
pub const JOB_VARIABLE: &str = "FOLDCAST_JOB";

/// The most ranks that a launcher starts.
pub const MAX_RANKS: usize = 1024;

/// The longest name of an abstract socket: `sun_path` without the leading zero byte.
const MAX_ADDRESS_BYTES: usize = 107;

/// First bytes of every packet; the digit is the version.
const MAGIC: [u8; 8] = *b"foldlch1";

const HELLO_BYTES: usize = MAGIC.len() + 4;
const NOTICE_BYTES: usize = MAGIC.len() + Cause::ENCODED_BYTES;

/// How long [`Client::connect`] waits for a launcher whose queue of connections is full.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);

/// Packets taken from one connection, and connections accepted, before others get their turn.
const TURN: usize = 64;

pub(crate) fn hello(rank: Rank) -> [u8; HELLO_BYTES] {
    let mut packet = [0; HELLO_BYTES];
    packet[..MAGIC.len()].copy_from_slice(&MAGIC);
    packet[MAGIC.len()..].copy_from_slice(&rank.0.to_le_bytes());
    packet
}

pub(crate) fn parse_hello(packet: &[u8]) -> Option<Rank> {
    let rank = packet.strip_prefix(&MAGIC)?;
    Some(Rank(u32::from_le_bytes(rank.try_into().ok()?)))
}

pub(crate) fn notice(rank: Rank, ending: Ending) -> [u8; NOTICE_BYTES] {
    let mut packet = [0; NOTICE_BYTES];
    packet[..MAGIC.len()].copy_from_slice(&MAGIC);
    packet[MAGIC.len()..].copy_from_slice(&Cause::RankDied { peer: rank, ending }.encode());
    packet
}

pub(crate) fn parse_notice(packet: &[u8]) -> Option<(Rank, Ending)> {
    let cause = packet.strip_prefix(&MAGIC)?;
    match Cause::decode(cause.try_into().ok()?)? {
        Cause::RankDied { peer, ending } => Some((peer, ending)),
        _ => None,
    }
}

/// Whether the process at the other end of a unix socket belongs to this process's user; with its pid.
fn same_user(socket: BorrowedFd<'_>) -> rustix::io::Result<Option<Pid>> {
    let peer = sockopt::socket_peercred(socket)?;
    Ok((peer.uid == rustix::process::geteuid()).then_some(peer.pid))
}

fn random_id() -> Result<String> {
    let mut bytes = [0_u8; 16];
    let filled = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    if filled != Ok(bytes.len()) {
        return Err(Error::resource("16 random bytes for the job's id", format!("{filled:?}"), "allow getrandom()"));
    }
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// What a rank learned from its launcher.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Notices {
    /// Ranks whose processes the launcher has reaped, in that order, with how they ended. A rank that a shell or
    /// another program stands before is that program here.
    pub ended: Vec<(Rank, Ending)>,
    /// The launcher is gone; this process must end: see [`die_with_launcher`].
    pub launcher_gone: bool,
}

/// A rank's end of the connection with its launcher.
#[derive(Debug)]
pub struct Client {
    socket: OwnedFd,
    gone: bool,
}

impl Client {
    /// Connects to the launcher that [`LAUNCHER_VARIABLE`] names and says that this process is `rank`. `None` if the
    /// variable is not set: nobody launched this process.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the variable holds no address, or one where another user listens;
    /// [`Error::Resource`] if no launcher is there or the system refuses a socket.
    pub fn connect(rank: Rank) -> Result<Option<Client>> {
        let Some(address) = std::env::var_os(LAUNCHER_VARIABLE) else { return Ok(None) };
        Client::connect_to(address.as_encoded_bytes(), rank).map(Some)
    }

    fn connect_to(address: &[u8], rank: Rank) -> Result<Client> {
        let shown = String::from_utf8_lossy(address);
        let invalid = |got: String| Error::invalid(LAUNCHER_VARIABLE, "the address that `foldcast run` set", got);
        if address.is_empty() || address.len() > MAX_ADDRESS_BYTES {
            return Err(invalid(format!("{} bytes: {shown:?}", address.len())));
        }
        let refused = |errno: Errno| {
            Error::resource(
                format!("a connection of {rank} to its launcher at {LAUNCHER_VARIABLE}={shown}"),
                errno,
                "the launcher of this job is gone or in another network namespace: start the ranks with `foldcast \
                 run`, or unset the variable",
            )
        };
        let socket = socket().map_err(refused)?;
        let name = SocketAddrUnix::new_abstract_name(address).map_err(refused)?;
        sockopt::set_socket_timeout(&socket, sockopt::Timeout::Send, Some(CONNECT_LIMIT)).map_err(refused)?;
        let start = Instant::now();
        loop {
            match rustix::net::connect(&socket, &name) {
                Err(Errno::INTR) if start.elapsed() < CONNECT_LIMIT => {}
                other => break other.map_err(refused)?,
            }
        }
        if same_user(socket.as_fd()).map_err(refused)?.is_none() {
            return Err(invalid(format!("{shown}, where another user listens")));
        }
        match rustix::net::send(&socket, &hello(rank), SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
            // A launcher that ended just now: the first read says so.
            Ok(_) | Err(Errno::PIPE | Errno::CONNRESET) => Ok(Client { socket, gone: false }),
            Err(errno) => Err(refused(errno)),
        }
    }

    /// Reads what has arrived. Never blocks. May leave some for the next call; the descriptor then stays readable.
    pub fn read_notices(&mut self) -> Notices {
        let mut notices = Notices::default();
        // One byte more than a packet, so that longer ones are seen to be none.
        let mut packet = [0; NOTICE_BYTES + 1];
        for _ in 0..TURN {
            if self.gone {
                break;
            }
            match rustix::net::recv(&self.socket, &mut packet, RecvFlags::DONTWAIT) {
                Ok((0, _)) => self.gone = true,
                Ok((length, _)) => notices.ended.extend(parse_notice(&packet[..length])),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(_) => self.gone = true,
            }
        }
        notices.launcher_gone = self.gone;
        notices
    }
}

impl AsFd for Client {
    /// To poll for readability, which also tells that the launcher is gone.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Ends this process at once by SIGKILL, because its launcher is gone.
///
/// That is what the kernel does to the launcher's own children (`PR_SET_PDEATHSIG`), so it makes no difference whether
/// a rank is one of those or further down. Nothing softer is sure to work: `exit` runs handlers that may wait for other
/// ranks, SIGTERM may be blocked or handled. Nothing is written first, for nobody may be reading any more.
pub fn die_with_launcher() -> ! {
    loop {
        // Cannot fail: a process may always signal itself.
        let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
        // The first process of a namespace does not die of its own SIGKILL.
        rustix::thread::sched_yield();
        if rustix::process::getpid().is_init() {
            std::process::exit(137);
        }
    }
}

fn socket() -> rustix::io::Result<OwnedFd> {
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
}

struct Connection {
    socket: OwnedFd,
    pid: Pid,
    /// Known once it has said hello.
    rank: Option<Rank>,
    /// How many notices it has been sent.
    sent: usize,
}

/// The launcher's end: knows the ranks that are connected and tells them which ranks have ended.
///
/// Never blocks and owns no thread: the launcher's loop polls [`as_fd`](AsFd::as_fd) and calls
/// [`serve`](Server::serve) when it is readable.
pub struct Server {
    listener: OwnedFd,
    epoll: OwnedFd,
    address: String,
    job: String,
    size: usize,
    connections: BTreeMap<u64, Connection>,
    next_key: u64,
    listening: bool,
    ended: Vec<(Rank, Ending)>,
    left: Vec<(Rank, Instant)>,
}

/// The listener's key in the epoll set; connections count from 1.
const LISTENER: u64 = 0;

impl Server {
    /// Listens at a new random address for a new job of `size` ranks.
    ///
    /// # Errors
    /// [`Error::Resource`] if the system refuses a socket.
    pub fn listen(size: usize) -> Result<Server> {
        let job = random_id()?;
        let address = format!("foldcast-launcher-{}", random_id()?);
        let refused = |errno: Errno| {
            Error::resource("a socket for the ranks of the job", errno, "allow unix sockets and raise `ulimit -n`")
        };
        let listener = socket().map_err(refused)?;
        let name = SocketAddrUnix::new_abstract_name(address.as_bytes()).map_err(refused)?;
        rustix::net::bind(&listener, &name).map_err(refused)?;
        rustix::net::listen(&listener, 4096).map_err(refused)?;
        rustix::io::ioctl_fionbio(&listener, true).map_err(refused)?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(refused)?;
        let event = epoll::EventData::new_u64(LISTENER);
        epoll::add(&epoll, &listener, event, epoll::EventFlags::IN).map_err(refused)?;
        Ok(Server {
            listener,
            epoll,
            address,
            job,
            size,
            connections: BTreeMap::new(),
            next_key: LISTENER + 1,
            listening: true,
            ended: Vec::new(),
            left: Vec::new(),
        })
    }

    /// The value for [`LAUNCHER_VARIABLE`].
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    /// The value for [`JOB_VARIABLE`].
    #[must_use]
    pub fn job(&self) -> &str {
        &self.job
    }

    /// The processes that are connected and said which rank they are. Several processes may claim one rank.
    pub fn connected(&self) -> impl Iterator<Item = (Rank, Pid)> + '_ {
        self.connections.values().filter_map(|connection| Some((connection.rank?, connection.pid)))
    }

    /// The ranks whose connections have ended, in that order, and when: they have left the job, or their processes have ended.
    /// Some have said so by this before their process is gone. A rank that connects again is there again.
    #[must_use]
    pub fn left(&self) -> &[(Rank, Instant)] {
        &self.left
    }

    /// Tells every connected process, and those that will connect, that the process started for `rank` has ended.
    pub fn announce(&mut self, rank: Rank, ending: Ending) {
        self.ended.push((rank, ending));
        let keys: Vec<u64> = self.connections.keys().copied().collect();
        for key in keys {
            self.flush(key);
        }
    }

    /// Accepts connections and takes and sends what is due. Never blocks.
    pub fn serve(&mut self) {
        let mut events = Vec::with_capacity(TURN);
        let none = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
        // An interrupted or failed wait has no events; the descriptor stays readable if there are any.
        let _ = epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), Some(&none));
        for event in events {
            match event.data.u64() {
                LISTENER => self.accept(),
                key => self.receive(key),
            }
        }
    }

    fn accept(&mut self) {
        for _ in 0..TURN {
            // Each rank may be several processes, one after another or at once, but not without limit.
            if self.connections.len() >= 4 * self.size + TURN {
                return self.set_listening(false);
            }
            let socket = match rustix::net::accept_with(&self.listener, SocketFlags::CLOEXEC) {
                Ok(socket) => socket,
                Err(Errno::INTR | Errno::CONNABORTED) => continue,
                Err(Errno::AGAIN) => return,
                // Out of descriptors or memory: goes on when a connection has ended.
                Err(_) => return self.set_listening(false),
            };
            let Ok(Some(pid)) = same_user(socket.as_fd()) else { continue };
            let key = self.next_key;
            let event = epoll::EventData::new_u64(key);
            if epoll::add(&self.epoll, &socket, event, epoll::EventFlags::IN).is_ok() {
                self.next_key += 1;
                self.connections.insert(key, Connection { socket, pid, rank: None, sent: 0 });
            }
        }
    }

    fn set_listening(&mut self, listening: bool) {
        let flags = if listening { epoll::EventFlags::IN } else { epoll::EventFlags::empty() };
        // Fails only for descriptors that are not in the set.
        let _ = epoll::modify(&self.epoll, &self.listener, epoll::EventData::new_u64(LISTENER), flags);
        self.listening = listening;
    }

    fn receive(&mut self, key: u64) {
        let mut packet = [0; HELLO_BYTES + 1];
        for _ in 0..TURN {
            let Some(connection) = self.connections.get_mut(&key) else { return };
            match rustix::net::recv(&connection.socket, &mut packet, RecvFlags::DONTWAIT) {
                Ok((length, _)) if length > 0 => {
                    let rank = parse_hello(&packet[..length]).filter(|rank| rank.index() < self.size);
                    if let (None, Some(rank)) = (connection.rank, rank) {
                        connection.rank = Some(rank);
                        self.left.retain(|(left, _)| *left != rank);
                    }
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Ok(_) | Err(_) => return self.close(key),
            }
        }
        self.flush(key);
    }

    /// Sends the notices that `key` has not had, as far as there is room; the rest when there is.
    fn flush(&mut self, key: u64) {
        let Some(connection) = self.connections.get_mut(&key) else { return };
        if connection.rank.is_none() {
            return;
        }
        let mut flags = epoll::EventFlags::IN;
        while let Some(&(rank, ending)) = self.ended.get(connection.sent) {
            let packet = notice(rank, ending);
            match rustix::net::send(&connection.socket, &packet, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(_) => connection.sent += 1,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    flags |= epoll::EventFlags::OUT;
                    break;
                }
                Err(_) => return self.close(key),
            }
        }
        // Fails only for descriptors that are not in the set.
        let _ = epoll::modify(&self.epoll, &connection.socket, epoll::EventData::new_u64(key), flags);
    }

    fn close(&mut self, key: u64) {
        let rank = self.connections.remove(&key).and_then(|connection| connection.rank);
        self.left.extend(rank.map(|rank| (rank, Instant::now())));
        if !self.listening {
            self.set_listening(true);
        }
    }
}

impl AsFd for Server {
    /// To poll for readability.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

#[cfg(test)]
mod tests;
