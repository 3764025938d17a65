//! The implementation for the CPU: every function is a call to the [`Machine`] that runs the
//! current thread.

use crate::SharedArray;
use crate::memory::{Vec16, Word};
use std::cell::Cell;
use std::panic::Location;
use std::sync::atomic::{AtomicU64, Ordering};

/// A position in a kernel's source.
pub type Place = &'static Location<'static>;

/// How a thread accesses memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// Reads it.
    Load,
    /// Writes it.
    Store,
}

/// Bytes of global memory that are to be copied to shared memory.
#[derive(Clone, Copy, Debug)]
pub struct Copied {
    /// The address in shared memory.
    pub to: usize,
    /// The address in global memory.
    pub from: usize,
    /// Bytes that are written: 4, 8 or 16.
    pub bytes: usize,
    /// The first of them that is read from global memory; those before it are written as 0.
    pub first: usize,
    /// The first after those that are read; it and all others are written as 0.
    pub end: usize,
    /// The position in the source that issues the copy.
    pub place: Place,
}

/// What runs GPU threads on a CPU. Each machine runs one GPU thread.
pub trait Machine {
    /// The thread's index in its block.
    fn thread_idx(&self) -> u32;
    /// The block's index in the grid.
    fn block_idx(&self) -> u32;
    /// Threads in a block.
    fn block_dim(&self) -> u32;
    /// Blocks in the grid.
    fn grid_dim(&self) -> u32;
    /// Waits for the threads of the block.
    fn sync_threads(&self, place: Place);
    /// Lets other blocks run; does not return if none can.
    fn spin(&self, place: Place);
    /// Exchanges a value with a lane of the warp.
    fn shuffle_xor(&self, value: u32, lane_mask: u32, place: Place) -> u32;
    /// Sends a value to the warp, and receives that of lane `lane`.
    fn shuffle(&self, value: u32, lane: u32, place: Place) -> u32;
    /// The address of the block's shared array with this `key`.
    fn shared_array(&self, key: usize, bytes: usize) -> usize;
    /// The address of the block's dynamic shared memory.
    fn dynamic_shared_memory(&self) -> usize;
    /// Checks an access to global memory; does not return if it is not allowed.
    fn global_access(&self, address: usize, bytes: usize, access: Access, place: Place);
    /// Records bytes of global memory to be copied to shared memory.
    fn copy_to_shared(&self, copy: Copied);
    /// Ends a batch of recorded copies.
    fn end_copies(&self);
    /// Takes the recorded copies of all ended batches except the last `but`, in order.
    fn take_copies(&self, but: usize) -> Vec<Copied>;
    /// Checks an access to shared memory; does not return if it is not allowed.
    fn shared_access(&self, address: usize, bytes: usize, access: Access, place: Place);
}

thread_local! {
    static CURRENT: Cell<Option<*const dyn Machine>> = const { Cell::new(None) };
}

/// Makes `machine` the one that [`crate`]'s functions call on this CPU thread, until the next call.
///
/// # Safety
/// `machine` stays valid until the next call on this CPU thread.
pub unsafe fn set_machine(machine: Option<*const dyn Machine>) {
    CURRENT.set(machine);
}

#[inline]
fn machine<'a>() -> &'a dyn Machine {
    let machine = CURRENT.get().expect("a kernel function was called outside the emulator");
    // SAFETY: `set_machine`'s condition.
    unsafe { &*machine }
}

pub(crate) fn thread_idx() -> u32 {
    machine().thread_idx()
}

pub(crate) fn block_idx() -> u32 {
    machine().block_idx()
}

pub(crate) fn block_dim() -> u32 {
    machine().block_dim()
}

pub(crate) fn grid_dim() -> u32 {
    machine().grid_dim()
}

#[track_caller]
pub(crate) fn sync_threads() {
    machine().sync_threads(Location::caller());
}

#[track_caller]
pub(crate) fn shuffle_xor(value: u32, lane_mask: u32) -> u32 {
    machine().shuffle_xor(value, lane_mask, Location::caller())
}

#[track_caller]
pub(crate) fn shuffle(value: u32, lane: u32) -> u32 {
    machine().shuffle(value, lane, Location::caller())
}

#[doc(hidden)]
pub fn shared_array<T: Word>(key: usize, len: u32) -> SharedArray<T> {
    let start = machine().shared_array(key, len as usize * size_of::<T>());
    SharedArray::new(start as *mut T)
}

#[doc(hidden)]
pub fn dynamic_shared_array() -> SharedArray<Vec16> {
    SharedArray::new(machine().dynamic_shared_memory() as *mut Vec16)
}

#[track_caller]
fn check_global<T>(at: *const T, access: Access) {
    machine().global_access(at as usize, size_of::<T>(), access, Location::caller());
}

#[track_caller]
pub(crate) unsafe fn load<T: Word>(at: *const T) -> T {
    check_global(at, Access::Load);
    // SAFETY: the machine has checked the address.
    unsafe { at.read() }
}

#[track_caller]
pub(crate) unsafe fn load_relaxed(at: *const u64) -> u64 {
    check_global(at, Access::Load);
    // SAFETY: the machine has checked the address; an atomic load writes nothing.
    unsafe { AtomicU64::from_ptr(at.cast_mut()) }.load(Ordering::Relaxed)
}

#[track_caller]
pub(crate) unsafe fn copy_to_shared<T>(to: *mut T, from: *const T) {
    check_global(from, Access::Load);
    let (to, from, bytes) = (to as usize, from as usize, size_of::<T>());
    let (first, place) = (0, Location::caller());
    machine().copy_to_shared(Copied { to, from, bytes, first, end: bytes, place });
}

#[track_caller]
pub(crate) unsafe fn copy_end_to_shared(to: *mut Vec16, from: *const Vec16, first: u32) {
    // SAFETY: the caller's conditions.
    unsafe { copy_part_to_shared(to, from, first, size_of::<Vec16>() as u32) }
}

/// Copies only the bytes from `first` to `end`: the others may be outside of this process's memory.
#[track_caller]
pub(crate) unsafe fn copy_part_to_shared(to: *mut Vec16, from: *const Vec16, first: u32, end: u32) {
    let (to, from, bytes, place) =
        (to as usize, from as usize, size_of::<Vec16>(), Location::caller());
    let (first, end) = (first as usize, end as usize);
    // A whole vector is aligned, but a part of one may begin and end at any byte.
    let piece = if end - first == bytes { bytes } else { 1 };
    for at in (first..end).step_by(piece) {
        machine().global_access(from + at, piece, Access::Load, place);
    }
    machine().copy_to_shared(Copied { to, from, bytes, first, end, place });
}

pub(crate) fn end_copies() {
    machine().end_copies();
}

/// The copies are made only here, so that a kernel that does not wait finds nothing.
pub(crate) fn wait_for_copies<const BUT: u32>() {
    for Copied { to, from, bytes, first, end, place } in machine().take_copies(BUT as usize) {
        machine().shared_access(to, bytes, Access::Store, place);
        // SAFETY: the machine has checked both addresses, of global memory from `first` to `end`.
        unsafe {
            (to as *mut u8).write_bytes(0, bytes);
            let (to, from) = ((to + first) as *mut u8, (from + first) as *const u8);
            to.copy_from_nonoverlapping(from, end - first);
        }
    }
}

#[track_caller]
pub(crate) unsafe fn store_relaxed(at: *mut u64, value: u64) {
    check_global(at, Access::Store);
    // SAFETY: the machine has checked the address. The store is a release, so that what a fence
    // orders before it is visible before it.
    unsafe { AtomicU64::from_ptr(at) }.store(value, Ordering::Release);
}

#[track_caller]
pub(crate) unsafe fn load_streaming(at: *const Vec16) -> Vec16 {
    check_global(at, Access::Load);
    // SAFETY: the machine has checked the address.
    unsafe { at.read() }
}

#[track_caller]
pub(crate) unsafe fn load_vec16(at: *const Vec16) -> Vec16 {
    // SAFETY: the caller's conditions.
    unsafe { load_streaming(at) }
}

#[track_caller]
pub(crate) unsafe fn prefetch(at: *const u8) {
    check_global(at, Access::Load);
}

#[track_caller]
pub(crate) unsafe fn store<T: Word>(at: *mut T, value: T) {
    check_global(at, Access::Store);
    // SAFETY: the machine has checked the address.
    unsafe { at.write(value) }
}

#[track_caller]
pub(crate) unsafe fn store_streaming_if(is: bool, at: *mut Vec16, value: Vec16) {
    if is {
        // SAFETY: the caller's conditions.
        unsafe { store_streaming(at, value) };
    }
}

#[track_caller]
pub(crate) unsafe fn store_streaming(at: *mut Vec16, value: Vec16) {
    check_global(at, Access::Store);
    // SAFETY: the machine has checked the address.
    unsafe { at.write(value) }
}

#[track_caller]
fn check_shared<T>(at: *const T, access: Access) {
    machine().shared_access(at as usize, size_of::<T>(), access, Location::caller());
}

#[track_caller]
pub(crate) unsafe fn load_shared<T: Word>(at: *const T) -> T {
    check_shared(at, Access::Load);
    // SAFETY: the machine has checked the address.
    unsafe { at.read() }
}

#[track_caller]
pub(crate) unsafe fn store_shared<T: Word>(at: *mut T, value: T) {
    check_shared(at, Access::Store);
    // SAFETY: the machine has checked the address.
    unsafe { at.write(value) }
}

#[track_caller]
pub(crate) unsafe fn load_shared_vec16(at: *const Vec16) -> Vec16 {
    check_shared(at, Access::Load);
    // SAFETY: the machine has checked the address.
    unsafe { at.read() }
}

#[track_caller]
pub(crate) unsafe fn store_shared_vec16(at: *mut Vec16, value: Vec16) {
    check_shared(at, Access::Store);
    // SAFETY: the machine has checked the address.
    unsafe { at.write(value) }
}

pub(crate) fn fence() {
    std::sync::atomic::fence(Ordering::SeqCst);
}

#[track_caller]
pub(crate) unsafe fn fetch_max(at: *mut u64, value: u64) {
    check_global(at, Access::Load);
    check_global(at, Access::Store);
    // SAFETY: the machine has checked the address; the caller's condition.
    unsafe { AtomicU64::from_ptr(at) }.fetch_max(value, Ordering::AcqRel);
}

#[track_caller]
pub(crate) unsafe fn fetch_add(at: *mut u64, value: u64) -> u64 {
    check_global(at, Access::Load);
    check_global(at, Access::Store);
    // SAFETY: the machine has checked the address; the caller's condition.
    unsafe { AtomicU64::from_ptr(at) }.fetch_add(value, Ordering::AcqRel)
}

pub(crate) fn fma_f32(a: f32, b: f32, c: f32) -> f32 {
    a.mul_add(b, c)
}

pub(crate) fn fma_f64(a: f64, b: f64, c: f64) -> f64 {
    a.mul_add(b, c)
}

pub(crate) fn f32_from_f16(bits: u16) -> f32 {
    half::f16::from_bits(bits).to_f32()
}

pub(crate) fn f16_from_f32(value: f32) -> u16 {
    half::f16::from_f32(value).to_bits()
}

pub(crate) fn bf16_from_f32(value: f32) -> u16 {
    half::bf16::from_f32(value).to_bits()
}

macro_rules! pairs {
    ($name:ident, $half:ident, $of:expr) => {
        pub(crate) fn $name(a: u32, b: u32) -> u32 {
            let of = |a: u32, b: u32| {
                let [a, b] = [a, b].map(|bits| half::$half::from_bits(bits as u16).to_f32());
                u32::from(half::$half::from_f32($of(a, b)).to_bits())
            };
            of(a >> 16, b >> 16) << 16 | of(a & 0xffff, b & 0xffff)
        }
    };
}
pairs!(max_f16_pairs, f16, f32::max);
pairs!(max_bf16_pairs, bf16, f32::max);
pairs!(min_or_nan_f16_pairs, f16, min_or_nan_f32);
pairs!(min_or_nan_bf16_pairs, bf16, min_or_nan_f32);
pairs!(max_or_nan_f16_pairs, f16, max_or_nan_f32);
pairs!(max_or_nan_bf16_pairs, bf16, max_or_nan_f32);

pub(crate) fn max_or_nan_f32_bits(a: u32, b: u32) -> u32 {
    // The NaN that the instruction returns.
    const NAN: u32 = 0x7fff_ffff;
    let (x, y) = (f32::from_bits(a), f32::from_bits(b));
    if x.is_nan() || y.is_nan() { NAN } else { x.max(y).to_bits() }
}

fn max_or_nan_f32(a: f32, b: f32) -> f32 {
    f32::from_bits(max_or_nan_f32_bits(a.to_bits(), b.to_bits()))
}

pub(crate) fn min_or_nan_f32(a: f32, b: f32) -> f32 {
    if a.is_nan() || b.is_nan() { f32::NAN } else { a.min(b) }
}

#[track_caller]
pub(crate) fn max_of_warp(mut value: i32) -> i32 {
    for lane_mask in [16, 8, 4, 2, 1] {
        let other = machine().shuffle_xor(value.cast_unsigned(), lane_mask, Location::caller());
        value = value.max(other.cast_signed());
    }
    value
}

#[track_caller]
pub(crate) fn sum_of_warp(mut value: u32) -> u32 {
    for lane_mask in [16, 8, 4, 2, 1] {
        value = value.wrapping_add(machine().shuffle_xor(value, lane_mask, Location::caller()));
    }
    value
}

#[track_caller]
pub(crate) fn any(of: bool) -> bool {
    ballot(of) != 0
}

#[track_caller]
pub(crate) fn ballot(of: bool) -> u32 {
    let mut lanes = u32::from(of) << (thread_idx() % 32);
    for lane_mask in [16, 8, 4, 2, 1] {
        lanes |= machine().shuffle_xor(lanes, lane_mask, Location::caller());
    }
    lanes
}

#[track_caller]
pub(crate) fn spin() {
    machine().spin(Location::caller());
}

/// The emulator runs one launch at a time, so there is nothing to wait for.
pub(crate) fn wait_for_launches_before() {}

pub(crate) fn in_register(address: u64) -> u64 {
    address
}

pub(crate) fn opaque(value: u64) -> u64 {
    value
}

pub(crate) fn opaque_vec16(value: Vec16) -> Vec16 {
    value
}

pub(crate) fn divide_plain_f32(a: f32, b: f32) -> f32 {
    a / b
}

pub(crate) fn divide_plain_f64(a: f64, b: f64) -> f64 {
    a / b
}

pub(crate) fn reciprocal_approx_f32(x: f32) -> f32 {
    1.0 / x
}

pub(crate) fn f64_from_halves(upper: u32, lower: u32) -> f64 {
    f64::from_bits(u64::from(upper) << 32 | u64::from(lower))
}

pub(crate) fn mask_below(value: u32, limit: u32) -> u32 {
    if value < limit { u32::MAX } else { 0 }
}

/// As inexact as the instruction, so that tests on the CPU see how callers correct it.
pub(crate) fn reciprocal_approx_f64(x: f64) -> f64 {
    let upper = |x: f64| f64::from_bits(x.to_bits() >> 32 << 32);
    upper(1.0 / upper(x))
}

pub(crate) fn f16x2_from_f32([low, high]: [f32; 2]) -> u32 {
    u32::from(f16_from_f32(low)) | u32::from(f16_from_f32(high)) << 16
}

pub(crate) fn bf16x2_from_f32([low, high]: [f32; 2]) -> u32 {
    u32::from(bf16_from_f32(low)) | u32::from(bf16_from_f32(high)) << 16
}

pub(crate) fn exp2_approx_f32(x: f32) -> f32 {
    x.exp2()
}

#[track_caller]
pub(crate) fn sync_warp() {
    // The machine synchronises the lanes of a warp at a shuffle.
    machine().shuffle_xor(0, 0, Location::caller());
}
