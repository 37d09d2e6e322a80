// A CUDA device that a CPU build of torch believes in: no memory, no kernels; streams and events are done at once.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

namespace {

constexpr c10::DeviceType CUDA = c10::DeviceType::CUDA;
const c10::Device DEVICE(CUDA, 0);
const c10::Stream STREAM(c10::Stream::DEFAULT, DEVICE);

struct Guard : c10::impl::NoOpDeviceGuardImpl<CUDA> {
  c10::Device exchangeDevice(c10::Device) const override { return DEVICE; }
  c10::Device getDevice() const override { return DEVICE; }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  c10::Stream getStream(c10::Device) const noexcept override { return STREAM; }
  c10::Stream getDefaultStream(c10::Device) const override { return STREAM; }
  c10::Stream getNewStream(c10::Device, int) const override { return STREAM; }
  c10::Stream exchangeStream(c10::Stream) const noexcept override { return STREAM; }
  void record(void** event, const c10::Stream&, const c10::DeviceIndex, const c10::EventFlag) const override { *event = this_(); }
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void destroyEvent(void*, const c10::DeviceIndex) const noexcept override {}
  bool queryStream(const c10::Stream&) const override { return true; }
  void recordDataPtrOnStream(const c10::DataPtr&, const c10::Stream&) const override {}
  void synchronizeStream(const c10::Stream&) const override {}
  void synchronizeEvent(void*) const override {}
  void synchronizeDevice(const c10::DeviceIndex) const override {}
  void* this_() const { return const_cast<Guard*>(this); }
};
const bool registered = (c10::impl::DeviceGuardImplRegistrar(CUDA, new Guard()), true);

struct Generator : at::CPUGeneratorImpl {
  Generator() { device_ = DEVICE; }
};

}  // namespace

namespace at {

struct CUDAHooks : CUDAHooksInterface {
  explicit CUDAHooks(CUDAHooksArgs) {}
  void init() const override {}
  bool hasCUDA() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  DeviceIndex deviceCount() const override { return 1; }
  int getNumGPUs() const override { return 1; }
  void setCurrentDevice(DeviceIndex) const override {}
  DeviceIndex getCurrentDevice() const override { return 0; }
  DeviceIndex current_device() const override { return 0; }
  DeviceIndex exchangeDevice(DeviceIndex) const override { return 0; }
  DeviceIndex maybeExchangeDevice(DeviceIndex) const override { return 0; }
  bool isPinnedPtr(const void*) const override { return false; }
  at::Generator getNewGenerator(DeviceIndex) const override { return make_generator<::Generator>(); }
};
REGISTER_CUDA_HOOKS(CUDAHooks)  // the name that torch looks for

}  // namespace at
