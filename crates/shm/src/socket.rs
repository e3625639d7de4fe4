//! Packets with descriptors over unix sockets, and who is at the other end.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::io::{Errno, Result};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with, recvmsg, sendmsg,
    socket_with,
};

use crate::retry::retry;
use crate::wire::{MAX_DESCRIPTORS, MAX_PACKET_BYTES};

/// A packet from a peer.
#[derive(Debug)]
pub(crate) struct Packet {
    /// Empty at the end of the stream, or if the peer sent more than any message has.
    pub(crate) bytes: Vec<u8>,
    pub(crate) descriptors: Vec<OwnedFd>,
    /// Descriptors came that this process had no room for.
    pub(crate) lost_descriptors: bool,
}

/// A non-blocking socket for packets, closed on exec.
pub(crate) fn packet_socket() -> Result<OwnedFd> {
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)
}

/// A listening socket at an abstract address; the kernel chooses one if `name` is `None`. `backlog` is bounded by the
/// kernel (net.core.somaxconn).
pub(crate) fn listen_at(name: Option<&[u8]>, backlog: usize) -> Result<OwnedFd> {
    let socket = packet_socket()?;
    let address = match name {
        Some(name) => SocketAddrUnix::new_abstract_name(name)?,
        None => SocketAddrUnix::new_unnamed(),
    };
    rustix::net::bind(&socket, &address)?;
    rustix::net::listen(&socket, i32::try_from(backlog).unwrap_or(i32::MAX))?;
    Ok(socket)
}

/// The abstract name at which a socket listens.
pub(crate) fn own_name(socket: impl AsFd) -> Result<Vec<u8>> {
    let address = SocketAddrUnix::try_from(rustix::net::getsockname(socket)?)?;
    Ok(address.abstract_name().ok_or(Errno::NOENT)?.to_vec())
}

/// A connection to an abstract address. Never waits: a full queue is `AGAIN`.
pub(crate) fn connect_to(name: &[u8]) -> Result<OwnedFd> {
    let socket = packet_socket()?;
    let address = SocketAddrUnix::new_abstract_name(name)?;
    retry(|| rustix::net::connect(&socket, &address))?;
    Ok(socket)
}

/// The next connection, if there is one.
pub(crate) fn accept_from(listener: impl AsFd) -> Result<OwnedFd> {
    retry(|| accept_with(&listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK))
}

/// Sends one packet, whole or not at all.
pub(crate) fn send(socket: impl AsFd, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    retry(|| {
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
            return Err(Errno::TOOBIG);
        }
        sendmsg(&socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL | SendFlags::DONTWAIT).map(|_| ())
    })
}

/// Takes one packet; `AGAIN` if there is none yet.
pub(crate) fn receive(socket: impl AsFd) -> Result<Packet> {
    let mut buffer = vec![0; MAX_PACKET_BYTES];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let got = retry(|| recvmsg(&socket, &mut [IoSliceMut::new(&mut buffer)], &mut control, flags))?;
    let mut descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = message {
            descriptors.extend(received);
        }
    }
    buffer.truncate(if got.flags.contains(ReturnFlags::TRUNC) { 0 } else { got.bytes });
    Ok(Packet { bytes: buffer, descriptors, lost_descriptors: got.flags.contains(ReturnFlags::CTRUNC) })
}

/// User and process at the other end, by the kernel's word. The process is 0 if this process cannot see it.
pub(crate) fn peer_of(socket: impl AsFd) -> Result<(u32, u32)> {
    let mut peer = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let mut len = libc::socklen_t::try_from(size_of::<libc::ucred>()).map_err(|_| Errno::INVAL)?;
    let place = (&raw mut peer).cast();
    let fd = socket.as_fd().as_raw_fd();
    // SAFETY: `place` and `len` describe a whole `ucred`, of which any bytes are a value.
    let status = unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_PEERCRED, place, &raw mut len) };
    if status != 0 {
        return Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL));
    }
    Ok((peer.uid, u32::try_from(peer.pid).unwrap_or(0)))
}

/// This process's user.
pub(crate) fn own_user() -> u32 {
    rustix::process::geteuid().as_raw()
}
